# Attack: a program whose declared encoding runs other code or does not exist
# Verdicts: runtime_error
# Errors: SyntaxError
# Source: b"# -*- coding: unicode_escape_of_nobody -*-\nprint(1)\n"
# Cheap: yes
