# Attack: a program of a million signs, which exhausts the parser
# Verdicts: runtime_error memory_limit
# Errors: SyntaxError|MemoryError|RecursionError
# Source: b"x = " + b"-" * 10**6 + b"1"
