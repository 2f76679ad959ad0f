# Attack: becomes a shell that looks around
# Verdicts: ok
# Prints: ^end$
# Never prints: root:|SUCCESS
# Cheap: yes
import os

script = """
cat /etc/passwd /etc/shadow /root/.bashrc /proc/1/environ /proc/*/cmdline 2>/dev/null
for f in /x /usr/x /tmp/../x; do (echo x > $f) 2>/dev/null && echo SUCCESS; done
ls /data /box /root /home 2>/dev/null
(sleep 60 &) ; (exec 3<>/dev/tcp/127.0.0.1/80) 2>/dev/null && echo SUCCESS
echo end
"""
os.execv("/bin/sh", ["sh", "-c", script])
