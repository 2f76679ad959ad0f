# Attack: modules of its own with the names of the sandbox's, and rewriting those in memory
# Verdicts: ok
# Prints: ^mine mine mine$
# Cheap: yes
import importlib
import sys

for name in ("jail", "program", "zygote"):
    with open(f"{name}.py", "w") as file:
        file.write("word = 'mine'")
importlib.invalidate_caches()
import jail
import program
import zygote

frame = sys._getframe()
while frame.f_back:
    frame = frame.f_back
    frame.f_globals.update(become=None, _finish=None, _flush=None, os=None)
print(jail.word, program.word, zygote.word, flush=True)
sys.modules["os"]._exit(0)
