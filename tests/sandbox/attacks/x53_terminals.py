# Attack: terminals, the kernel's log, devices and other people's buses
# Verdicts: ok
# Prints: ^\[\]\nend$
# Cheap: yes
import fcntl
import glob
import os

for path in ("/dev/tty", "/dev/ptmx", "/dev/pts/0", "/dev/kmsg", "/dev/mem", "/dev/fuse", "/dev/kvm", "/dev/nvidia0", "/dev/sda", "/dev/vda", "/run/dbus/system_bus_socket", "/var/run/docker.sock", "/dev/console", "/sys/kernel"):
    try:
        os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        print(path, "SUCCESS")
    except OSError:
        pass
for fd in (0, 1, 2):
    for request in (0x5412, 0x540E, 0x5401):  # TIOCSTI, TIOCSCTTY, TCGETS
        try:
            fcntl.ioctl(fd, request, b"x" * 60)
            print(fd, request, "SUCCESS")
        except OSError:
            pass
print(sorted(set(glob.glob("/dev/*")) - {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "shm")}))
print("end")
