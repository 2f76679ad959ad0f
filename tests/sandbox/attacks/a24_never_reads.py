# Attack: never reads 50 MB of input
# Verdicts: ok
# Stdin: 50000000
# Prints: ^done$
print("done")
