# Attack: new namespaces, mounts, roots, devices, users and groups
# Verdicts: ok
# Machine: x86_64
# Prints: \A(\w+ refused\n)+\(\d+, \d+, \d+\) \(\d+, \d+, \d+\) same\n\Z
# Cheap: yes
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
before = os.getresuid(), os.getresgid(), os.getgroups()


def call(name, *arguments):
    result = libc.syscall(*(ctypes.c_char_p(one) if isinstance(one, bytes) else ctypes.c_long(one) for one in arguments))
    if result == 0 and name.startswith("clone"):
        os._exit(0)
    print(name, "SUCCESS" if result >= 0 else "refused")


for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80):
    call("unshare", 272, flag)
    call("clone", 56, flag | 17, 0, 0, 0, 0)
call("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
call("bind", 165, b"/", b"/tmp", b"", 4096, 0)
call("umount", 166, b"/job", 2)
call("chroot", 161, b"/")
call("pivot_root", 155, b".", b".")
call("setns", 308, 0, 0)
call("open_tree", 428, -100, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
call("setuid", 105, 0)
call("setreuid", 113, 0, 0)
call("setresuid", 117, 0, 0, 0)
call("setgroups", 116, 0, 0)
call("setresgid", 119, 0, 0, 0)
call("capset", 126, 0, 0)
call("device", 133, b"device", 0o020666, os.makedev(1, 3))
call("block", 259, -100, b"block", 0o060666, os.makedev(8, 0))
after = os.getresuid(), os.getresgid(), os.getgroups()
print(*after[:2], "same" if before == after else "SUCCESS")
