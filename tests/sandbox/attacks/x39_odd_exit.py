# Attack: leaves by an exit whose code raises when it is read
# Verdicts: runtime_error
# Prints: ^before$
# Cheap: yes


class Odd(SystemExit):
    @property
    def code(self):
        raise ValueError("no code")


print("before", flush=True)
raise Odd(0)
