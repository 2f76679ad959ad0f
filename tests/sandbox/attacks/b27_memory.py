# Attack: byte arrays until memory is refused
# Verdicts: memory_limit
# Prints: ^begun$
# Cheap: yes
print("begun", flush=True)
held = []
while True:
    held.append(bytearray(10**7))
