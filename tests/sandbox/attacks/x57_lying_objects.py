# Attack: streams, a hook and a loop of garbage that lie about how it ended
# Verdicts: runtime_error
# Prints: ^before$
# Cheap: yes
import gc
import os
import sys


class Liar:
    closed = False

    def write(self, text):
        return len(text)

    def flush(self):
        raise KeyboardInterrupt

    def __getattr__(self, name):
        raise BaseException(name)

    def __del__(self):
        gc.collect()
        raise SystemExit(0)


print("before", flush=True)
sys.stdout = sys.stderr = Liar()
sys.excepthook = lambda *_: os.fork()
sys.unraisablehook = lambda *_: sys.exit(0)
gc.callbacks.append(lambda *_: Liar())
raise Liar.__getattr__(None, "x")
