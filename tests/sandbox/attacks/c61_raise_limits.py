# Attack: raises its limits, and those of its parent
# Verdicts: ok
# Prints: ^end$
# Cheap: yes
import os
import resource

for name in [name for name in dir(resource) if name.startswith("RLIMIT_")]:
    limit = getattr(resource, name)
    soft, hard = resource.getrlimit(limit)
    for pid in (0, os.getpid(), 1, os.getppid()):
        for value in ((-1, -1), (hard + 1, hard + 1)):
            try:
                resource.prlimit(pid, limit, value)
                if hard != -1:
                    print(name, pid, value, "SUCCESS")
            except (OSError, ValueError, OverflowError):
                pass
    try:
        if pid := os.getppid():
            resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))
            print("parent SUCCESS")
    except (OSError, ValueError):
        pass
print("end")
