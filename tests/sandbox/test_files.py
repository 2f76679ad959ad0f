"""Files that a request brings: beside the script, each run's own; what cannot be placed is refused in one sentence."""

from __future__ import annotations

import pytest

from workbench.sandbox.executor import Executor, Limits, Request
from workbench.sandbox.records import MOST_FILES
from workbench.types import WorkbenchError

QUICK = Limits(cpu_s=2.0, wall_s=5.0, memory_mb=256)


@pytest.mark.parametrize("without", [(), ("bubblewrap",), ("namespaces",)])
def test_files_lie_beside_the_script(without: tuple[str, ...]) -> None:
    files = {
        "data.bin": bytes(range(256)) * 4096,
        "with space.txt": b"",
        "naïve 😀": "ü".encode(),
        "answer.py": b"x = 42",
    }
    code = (
        "import os, sys, answer\nprint(sorted(os.listdir('.')))\nprint(input(), answer.x)\n"
        "open('submission.csv', 'wb').write(open('data.bin', 'rb').read() + open('naïve 😀', 'rb').read())\n"
        "open('data.bin', 'w').write('mine'); os.remove('with space.txt')"
    )
    with Executor([], 1, flavours=("thin",), without=without) as executor:
        for _ in range(2):  # what one does to them is not seen by the next
            asked = Request(code, stdin=b"in\n", files=files, limits=QUICK, flavour="thin")
            result = executor.submit(asked).result(30)
            assert result.stdout == f"{sorted([*files, 'script.py'])}\nin 42\n", result
            assert result.submission == files["data.bin"] + files["naïve 😀"]
        many = {"é" * 120 + f"{n:03}": f"{n}".encode() for n in range(MOST_FILES)}
        code = "import os; print(sum(int(open(n).read()) for n in os.listdir('.') if n.startswith('é')))"
        asked = Request(code, files=many, limits=QUICK, flavour="thin")
        assert executor.submit(asked).result(30).stdout == f"{sum(range(MOST_FILES))}\n"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({name: b""}, f"files: {name!r} is not accepted: expected a printable file name without folders")
        for name in ("", ".", "..", "a/b", "/etc/x", "a\0b", "a\nb", "\udc80", "input", "script.py", "é" * 128)
    ]
    + [
        ({f"{n}": b"" for n in range(MOST_FILES + 1)}, "201 files are too many for one run: give at most 200."),
        ({"a": bytes(2**20)}, "1 files and the script take 1052672 bytes, which is more than files_mb=1 allows"),
        ({f"{n}": b"x" * 5000 for n in range(128)}, "which is more than files_mb=1 allows"),
    ],
)
def test_files_that_cannot_be_placed_are_refused(files: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(WorkbenchError) as refused:
        Request("print(1)", files=files, limits=Limits(files_mb=1))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
