# Attack: looks through all objects and frames for what others asked or may read
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import gc
import re
import sys

seen, frame = [], sys._getframe()
while frame:
    seen += [repr(value)[:20000] for value in {**frame.f_globals, **frame.f_locals}.values()]
    frame = frame.f_back
for one in gc.get_objects():
    if isinstance(one, (dict, list, tuple, bytes, str, set)):
        try:
            seen.append(repr(one)[:2000])
        except Exception:
            pass
text = "\n".join(seen)
for found in re.finditer("nobody-may-[r]ead|private/[a]nswers", text):
    print("SUCCESS", text[max(0, found.start() - 200) : found.end() + 200])
print("end")
