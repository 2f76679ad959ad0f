# Attack: prints 64 KB for ever
# Verdicts: output_limit
# Prints: \A(x{65536}\n)*x*\Z
# Within: 2
# Cheap: yes
while True:
    print("x" * 65536)
