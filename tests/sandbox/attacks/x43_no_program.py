# Attack: a program that is a syntax error
# Verdicts: runtime_error
# Errors: SyntaxError
# Source: b"def f(:\n    pass\n"
# Cheap: yes
