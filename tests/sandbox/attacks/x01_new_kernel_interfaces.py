# Attack: io_uring, userfaultfd, perf events, BPF, keys, file handles, fanotify, message queues and shared segments
# Verdicts: ok
# Machine: x86_64
# Prints: \A(\w+ refused (1|38)\n){28}\Z
# Cheap: yes
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.addressof(ctypes.create_string_buffer(4096))
CALLS = {
    "io_uring_setup": (425, 8, room), "io_uring_enter": (426, 0, 0, 0, 0, 0), "io_uring_register": (427, 0, 0, 0, 0),
    "userfaultfd": (323, 1), "perf_event_open": (298, room, 0, -1, -1, 0), "bpf": (321, 0, room, 72),
    "keyctl": (250, 0, -3, 0), "add_key": (248, room, room, 0, 0, -3), "request_key": (249, room, room, 0, -3),
    "name_to_handle_at": (303, -100, room, room, room, 0), "open_by_handle_at": (304, 0, room, 0),
    "fanotify_init": (300, 0, 0), "inotify_init": (294, 0), "mq_open": (240, room, 0o102, 0o600, 0),
    "shmget": (29, 0, 4096, 0o1600), "msgget": (68, 0, 0o1600), "semget": (64, 0, 1, 0o1600), "memfd_create": (319, room, 0),
    "memfd_secret": (447, 0), "modify_ldt": (154, 0, room, 64), "personality": (135, 0x40000), "clone3": (435, room, 64),
    "init_module": (175, room, 0, room), "kexec_load": (246, 0, 0, 0, 0), "syslog": (103, 3, room, 64),
    "sethostname": (170, room, 1), "quotactl": (179, 0, 0, 0, 0), "swapon": (167, room, 0),
}  # fmt: skip
for name, (number, *arguments) in CALLS.items():
    result = libc.syscall(*map(ctypes.c_long, (number, *arguments)))
    print(name, "SUCCESS" if result >= 0 else "refused", ctypes.get_errno())
