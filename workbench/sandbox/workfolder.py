"""Folders outside: which public ones a run may see, and the working folder of a run where there are no namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from workbench.sandbox.outer import NOBODY, is_root
from workbench.types import WorkbenchError

_DEPTH = 3
_KEEP = 'read _; n=0; while ! rm -rf -- "$1" && [ $n -lt 50 ]; do n=$((n+1)); sleep 0.1; done'
"""The end of its input is the end of the executor; a run that is being ended may still write for a moment."""


def data_folders(data_roots: Sequence[Path]) -> tuple[Path, ...]:
    """`data_roots`, resolved. Raises `WorkbenchError` for one folder in place of a list, and for a missing one."""
    if isinstance(data_roots, str | os.PathLike):
        folder = str(data_roots)
        raise WorkbenchError(f"data_roots={folder!r} is not accepted: expected a list of folders; give [{folder!r}].")
    for root in data_roots:
        if not Path(root).is_dir():
            raise WorkbenchError(f"data_roots: {str(root)!r} is no folder: give folders that exist.")
    return tuple(Path(root).resolve() for root in data_roots)


def public_folders(root: Path) -> list[Path]:
    """Folders called `public` at most three levels below `root`, in order; `root` itself when it is one."""
    if root.name == "public":
        return [root]
    found: list[Path] = []
    level = [root]
    for _ in range(_DEPTH):
        level = sorted(
            child
            for folder in level
            if folder.is_dir()
            for child in folder.iterdir()
            if child.is_dir() and not child.is_symlink()
        )
        found += [child.resolve() for child in level if child.name == "public"]
        level = [child for child in level if child.name not in ("public", "private")]
    return found


def check_public(folder: Path, roots: Sequence[Path]) -> None:
    """Raise `WorkbenchError` unless `folder` may be shown to a run: it exists, is below a root, holds no secrets."""
    place = folder.resolve()
    if not place.is_dir():
        raise WorkbenchError(f"public_dir={str(folder)!r} is no folder: expected the public files of a task.")
    if not any(place == root or root in place.parents for root in roots):
        known = ", ".join(map(str, roots)) or "none"
        raise WorkbenchError(
            f"public_dir={str(folder)!r} lies below no data root ({known}): name its parent in data_roots."
        )
    if place in roots and place.name != "public" and (place / "public").is_dir():
        raise WorkbenchError(
            f"public_dir={str(folder)!r} is a task, not its public files: give {str(folder / 'public')!r}."
        )
    names = {entry.name for entry in os.scandir(place)}
    if hidden := names & {"private", "answers.csv"}:
        raise WorkbenchError(
            f"public_dir={str(folder)!r} contains {sorted(hidden)[0]!r}, which a run must not see: "
            "give the public folder alone."
        )
    if is_root() and not place.stat().st_mode & 0o005 == 0o005:
        raise WorkbenchError(
            f"public_dir={str(folder)!r} is readable by root alone, and runs are not root: `chmod -R o+rX` it."
        )


class Base:
    """Where one executor's run folders lie; removed with it by a process that waits for its end, be it by SIGKILL."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        self.place.chmod(0o711)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEP, "sh", str(self.place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        self._keeper.communicate()


def make(public: Path | None, base: Path | None = None) -> Path:
    """A fresh folder with `work` (where ./input links to `public`) and `tmp`, owned by whom the run will be."""
    top = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=base))
    for name in ("work", "tmp"):
        (top / name).mkdir(mode=0o700)
    if public is not None:
        (top / "work" / "input").symlink_to(public)
    if is_root():
        top.chmod(0o711)
        for name in ("work", "tmp"):
            os.chown(top / name, NOBODY, NOBODY)
            (top / name).chmod(0o777)  # a run that keeps euid 0 without capabilities is not the owner
    return top


def sweep(kind: str = "run") -> None:
    """Remove folders (of runs, or of another kind of work) whose owner was killed: a process of this user and pid
    namespace that is gone."""
    prefix = _prefix(kind)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(FileNotFoundError):  # another executor that starts now removes it as well
            ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
            if ours and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
                remove(folder)


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A folder for temporary files of one `kind` of work, removed at its end; before, those that killed ones left."""
    sweep(kind)
    with tempfile.TemporaryDirectory(prefix=f"{_prefix(kind)}{os.getpid()}-") as folder:
        yield Path(folder)


def _prefix(kind: str = "run") -> str:
    """Containers may share a folder for temporary files, and have pids of their own."""
    return f"workbench-{kind}-{os.stat('/proc/self/ns/pid').st_ino}-"


def remove(folder: Path) -> None:
    """Remove it whatever is in it; deep trees are beyond `shutil.rmtree`."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)
