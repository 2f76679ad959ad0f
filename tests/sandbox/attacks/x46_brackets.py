# Attack: a program of a million brackets
# Verdicts: runtime_error memory_limit
# Errors: SyntaxError|MemoryError|RecursionError
# Source: b"(" * 10**6
# Cheap: yes
