# Attack: terminal sequences, zero bytes, no valid text
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import sys

sys.stdout.buffer.write(bytes(range(256)) * 20 + b"\x1b]0;title\x07\x1b[2J\xed\xa0\x80\xf4\x90\x80\x80\nend\n")
sys.stderr.buffer.write(bytes(range(256)) * 20)
