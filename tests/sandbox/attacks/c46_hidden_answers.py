# Attack: opens the answers by their path, beside its input, by search and through a link
# Verdicts: ok
# Prints: \A(\w+ refused \w+\n){6}\Z
import glob
import json
import os
import sys

facts = json.load(sys.stdin)


def attempt(name, action):
    try:
        action()
    except BaseException as error:
        print(name, "refused", type(error).__name__)
    else:
        print(name, "SUCCESS")


def through_a_link():
    os.symlink(facts["answers"], "answers")
    print(open("answers").read())


def search():
    found = glob.glob("/**/*answer*.csv", recursive=True)
    assert found
    print([open(path).read() for path in found])


attempt("path", lambda: print(open(facts["answers"]).read()))
attempt("beside", lambda: print(open("./input/../private/answers.csv").read()))
attempt("above", lambda: print(open("input/../../private/answers.csv").read()))
attempt("search", search)
attempt("link", through_a_link)
attempt("listing", lambda: print(os.listdir(os.path.dirname(facts["answers"]))))
