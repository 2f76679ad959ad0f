# Attack: the exit code that the sandbox itself fails with
# Verdicts: runtime_error
# Reason: exit code 125
# Cheap: yes
raise SystemExit(125)
