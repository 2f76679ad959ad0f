# Attack: open files until the limit
# Verdicts: ok
# Prints: ^refused at 25\d$
# Cheap: yes
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    print("refused at", len(held))
