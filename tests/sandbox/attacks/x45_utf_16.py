# Attack: a program in UTF-16
# Verdicts: runtime_error
# Errors: SyntaxError|ValueError
# Source: "print(1)\n".encode("utf-16")
# Cheap: yes
