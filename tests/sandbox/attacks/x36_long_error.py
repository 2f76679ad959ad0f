# Attack: an error whose one line is 10 MB, of a class that says it is another
# Verdicts: runtime_error
# Errors: MemoryErrorr{100}: x
# Cheap: yes
raise type("MemoryError" + "r" * 100, (Exception,), {})("x\n\u202e" * 2_000_000)
