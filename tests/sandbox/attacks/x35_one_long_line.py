# Attack: a line of 10 MB
# Verdicts: output_limit
# Prints: \Ax{262144}\Z
# Cheap: yes
print("x" * 10_000_000)
