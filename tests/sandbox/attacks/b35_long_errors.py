# Attack: 5 MB of errors beside a small answer; the errors are cut in their middle
# Verdicts: ok
# Prints: ^right$
# Errors: \[\.\.\. cut \.\.\.\](.|\n)*THE END\Z
import sys

sys.stderr.write("x" * 5_000_000 + "THE END")
print("right")
