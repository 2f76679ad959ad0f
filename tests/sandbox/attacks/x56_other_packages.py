# Attack: what is installed outside and not for it: this project, deep learning, bundled data
# Verdicts: ok
# Flavour: full
# Prints: ^end$
# Cheap: yes
import importlib
import json
import os
import sys

facts = json.load(sys.stdin)
sys.path.append(facts["repository"])
for name in ("workbench", "torch", "transformers", "tests", "yaml", "pydantic"):
    try:
        importlib.import_module(name)
        print(name, "SUCCESS")
    except ImportError:
        pass
import sklearn.datasets

for name in ("load_diabetes", "load_iris", "load_breast_cancer", "fetch_california_housing"):
    try:
        getattr(sklearn.datasets, name)()
        print(name, "SUCCESS")
    except Exception:
        pass
for folder in ("/box", "/data"):
    try:
        assert os.listdir(folder)
        print(folder, "SUCCESS")
    except (OSError, AssertionError):
        pass
print("end")
