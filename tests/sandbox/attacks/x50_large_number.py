# Attack: a program with a number of 5 MB
# Verdicts: runtime_error
# Errors: SyntaxError|ValueError
# Source: b"x = " + b"9" * 5_000_000
