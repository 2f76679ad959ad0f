# Attack: a program with a literal of 5 MB
# Verdicts: ok
# Prints: ^5000000$
# Source: b"x = '" + b"y" * 5_000_000 + b"'\nprint(len(x))\n"
