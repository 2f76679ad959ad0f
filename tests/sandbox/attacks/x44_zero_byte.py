# Attack: a program with a zero byte
# Verdicts: runtime_error
# Errors: SyntaxError|ValueError
# Source: b"print(1)\0print(2)\n"
# Cheap: yes
