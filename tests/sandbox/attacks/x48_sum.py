# Attack: a program that is a sum of 100 000 terms
# Verdicts: runtime_error
# Errors: ^RecursionError
# Source: b"x = " + b"1+" * 10**5 + b"1"
