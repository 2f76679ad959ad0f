# Attack: a million empty files
# Verdicts: ok
# Prints: ^refused at \d{4}$
count = 0
try:
    while count < 1_000_000:
        open(f"attack-{count}", "w").close()
        count += 1
except OSError:
    print("refused at", count)
