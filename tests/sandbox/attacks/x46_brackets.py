# Attack: a program of a million brackets
# Verdicts: runtime_error
# Errors: ^SyntaxError: too many nested parentheses
# Source: b"(" * 10**6
# Cheap: yes
