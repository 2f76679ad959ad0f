# Attack: starts every program that would give it another user
# Verdicts: ok
# Prints: ^end$
import os
import stat
import subprocess

for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/lib/openssh", "/usr/libexec"):
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = f"{folder}/{name}"
        try:
            if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
                subprocess.run([path, "--help"], capture_output=True, timeout=1, stdin=subprocess.DEVNULL, check=False)
        except (OSError, subprocess.TimeoutExpired):
            pass
status = subprocess.run(["/usr/bin/id", "-u"], capture_output=True, text=True, check=False).stdout.strip()
print("SUCCESS" if status == "0" and os.getuid() != 0 else "end")
