# Attack: an array of 8 TB that is never touched
# Verdicts: memory_limit
# Reason: Refused more than 256 MB of memory: .*MemoryError
# Flavour: full
# Cheap: yes
import numpy as np

np.zeros(10**12)
