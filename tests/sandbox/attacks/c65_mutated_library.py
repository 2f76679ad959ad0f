# Attack: changes preloaded modules and generators for a next run
# Verdicts: ok
# Prints: ^changed$
# Flavour: full
# Cheap: yes
import builtins
import random
import sys

import numpy as np
import pandas as pd
import sklearn.metrics

np.random.seed(0)
random.seed(0)
pd.read_csv = pd.DataFrame.to_csv = None
np.sum = np.mean = lambda *_, **__: 1.0
sklearn.metrics.roc_auc_score = sklearn.metrics.mean_squared_error = lambda *_, **__: 1.0
sys.stdout.write("changed\n")
builtins.print = builtins.open = builtins.sum = None
sys.modules["json"] = None
