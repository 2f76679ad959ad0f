# Attack: names with line breaks, no valid text, 255 bytes and terminal sequences
# Verdicts: ok
# Prints: ^[6-9]$
# Submission: <none>
# Cheap: yes
import os

made = 0
for name in (b"a\nb", b"\xff\xfe\x80", b"x" * 255, b"\x1b[2J\x07", b"-rf", b" ", b"submission.csv ", "\u202ecsv".encode(), b"..."):
    with open(name, "wb") as file:
        made += file.write(b"x")
os.mkdir(b"\xff" * 255)
print(made)
