# Attack: a program of a million signs, which exhausts the parser
# Verdicts: memory_limit
# Errors: ^MemoryError
# Source: b"x = " + b"-" * 10**6 + b"1"
