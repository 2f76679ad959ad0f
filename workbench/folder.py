"""What a run folder needs of the file system: a lock, config.json, files whole or absent, checkpoints, no network."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workbench.config import ROOT, Config, make_config
from workbench.database import FORMAT, dump
from workbench.types import WorkbenchError

NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs lustre beegfs gpfs ncpfs davfs coda orangefs pvfs2 "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone fuse.davfs2 fuse.juicefs "
    "fuse.blobfuse".split()
)
"""File system types on which SQLite's WAL is not safe: they share no memory between machines."""

DIGITS = 9
"""Most digits of a step: `steps` is at most a million, and Python reads no number of some thousands."""
_OURS = frozenset({"lock", "run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "checkpoints", ".config.json.aside"})


def filesystem_type(path: Path, mounts: str) -> str:
    """Type of the file system that holds an absolute path, from the text of /proc/mounts; '' when it is not told."""
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))  # \040 is a space
        if len(point.parts) >= best and path.is_relative_to(point):
            best, found = len(point.parts), fields[2]
    return found


def refuse_network(path: Path, mounts: str | None = None) -> None:
    """Raise WorkbenchError when a path, which may not exist yet, lies on a network file system."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:  # not Linux
            return
    kind = filesystem_type(path.resolve(), mounts)
    if kind in NETWORK_TYPES:
        raise WorkbenchError(
            f"'{path}' is on a network file system ({kind}), where the run's database is not safe: "
            "put the run on a local disk, and copy the folder when it is done."
        )


def writing(path: Path, error: Exception) -> WorkbenchError:
    """The sentence for an error while writing in a run folder."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error).lower() if isinstance(error, sqlite3.Error) else ""  # that of an OSError names files
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "full" in text or "disk i/o" in text:
        there = os.path.exists(path / "config.json")  # written last, when a run is created
        again = (
            f"run `workbench resume {shlex.quote(str(path))}`; what was recorded before is kept"
            if there
            else "start it again"
        )
        return WorkbenchError(
            f"'{path}' cannot be written any more, the disk is full or failing ({why}): free some space and {again}."
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or "readonly" in text or "unable to open" in text:
        return WorkbenchError(f"'{path}' cannot be written ({why}): choose a folder you may write, --run DIR.")
    return WorkbenchError(f"'{path}' cannot be written ({why}): mend this or choose another folder, --run DIR.")


def new_path(config: Config, root: Path = ROOT / "runs") -> Path:
    """A new folder for a run below `root`, named by time, policy, seed; made here, so that nobody else chooses it."""
    policy = re.sub(r"[^\w.-]+", "-", Path(config.policy).stem) or "policy"
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{policy}-s{config.seed}"
    refuse_network(root.absolute())
    for n in itertools.count():
        path = root / (stem if n == 0 else f"{stem}-{n}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            break
        except OSError as error:
            if not os.path.lexists(path):
                raise writing(path, error) from None
    return path


def refuse_taken(path: Path) -> None:
    """Raise WorkbenchError unless a new run may be made here: no folder yet, an empty one, or a half-made run."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise WorkbenchError(f"{str(path)!r} is no UTF-8 text: name a folder with other letters, --run DIR.") from None
    if os.path.isfile(path):
        raise WorkbenchError(f"'{path}' is a file: a run needs a folder, choose another, --run DIR.")
    try:
        names = {child.name for child in path.iterdir()} if os.path.exists(path) else set()
    except OSError as error:
        raise writing(path, error) from None
    if "config.json" in names:
        raise WorkbenchError(
            f"'{path}' already holds a run: go on with `workbench resume {shlex.quote(str(path))}`, "
            "or choose another folder."
        )
    if foreign := sorted(names - _OURS):
        raise WorkbenchError(
            f"'{path}' is not empty (it holds '{foreign[0]}'): a new run needs an empty or new folder."
        )


def write_config(path: Path, config: Config, environment: Mapping[str, Any], created: str) -> None:
    """Write config.json, whole or not at all. Raises OSError where the disk does."""
    content = {
        "format": FORMAT,
        "workbench": version("workbench"),
        "created": created,
        "config": config.model_dump(),
        "environment": json.loads(dump(dict(environment))),
    }
    write_file(path / "config.json", json.dumps(content, indent=2) + "\n")


def check_format(path: Path, found: Any) -> None:
    """Raise WorkbenchError for a run of another format than ours."""
    if found != FORMAT:
        raise WorkbenchError(
            f"'{path}' is a run of format {found}, and this workbench reads format {FORMAT}: "
            "use the version of the workbench named in its config.json, or start a new run."
        )


def read_config(path: Path) -> tuple[Config, dict[str, Any], str]:
    """(settings at the start, machine and versions, time of creation) of a run; WorkbenchError where there is none."""
    file = path / "config.json"
    if os.path.isfile(path):
        raise WorkbenchError(f"'{path}' is a file: expected the folder of a run.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = content["format"]
    except FileNotFoundError:
        what = "has no config.json" if os.path.exists(path) else "does not exist"
        raise WorkbenchError(f"'{path}' is no run, it {what}: expected a folder made by `workbench train`.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkbenchError(f"'{file}' cannot be read ({error}): expected the file that the run wrote.") from None
    except OSError as error:
        raise WorkbenchError(f"'{file}' cannot be read ({error}): make it readable.") from None
    check_format(path, found)
    try:
        return make_config(content["config"]), dict(content["environment"]), str(content["created"])
    except (WorkbenchError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WorkbenchError(f"'{file}' does not fit this version of the workbench: {error}") from None


class Lock:
    """One writer per folder, held by this open file until `release` or the end of the process, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise WorkbenchError(
                f"'{folder}' is being written by process {pid}: stop that one first, or choose another folder."
            ) from None
        except OSError:
            os.close(self._fd)
            raise
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:  # a full disk: the lock holds all the same, only its owner is not named
            pass

    def release(self) -> None:
        """Give the folder free; twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, text: str) -> None:
    """Write aside, fsync, rename: afterwards the file holds the old text or the new one, never a part."""
    aside = path.with_name(f".{path.name}.aside")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync(path.parent)


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder aside, fsync everything in it, rename it to `path` (replacing what is there)."""
    aside = path.with_name(f".{path.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write(aside)
        for found in sorted(aside.rglob("*"), reverse=True):
            sync(found)
        sync(aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    old = path.with_name(f".{path.name}.old")
    if path.exists():
        os.rename(path, old)
    os.rename(aside, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that a half-removed one never bears its name."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    os.rename(path, old)
    shutil.rmtree(old, ignore_errors=True)


class Checkpoints:
    """The folders `checkpoints/<step>/` of a run and the file `latest`, which names the one in force.

    What `latest` does not name does not exist: it is written last. Raises OSError where the disk does.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"
        self.marker = run / "latest"

    def steps(self) -> list[int]:
        """Numbers of the folders there are, rising."""
        if not self.folder.is_dir():
            return []
        return sorted(int(child.name) for child in self.folder.iterdir() if child.name.isdecimal())

    def latest(self) -> int | None:
        """The step that `latest` names; None before the first checkpoint.

        Raises WorkbenchError when it is lost: a second folder is only made after the first was published.
        """
        try:
            text = self.marker.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            if len(self.steps()) > 1:
                raise WorkbenchError(
                    f"'{self.marker}' is missing: write the number of a checkpoint into it (there are: {self.steps()})."
                ) from None
            return None
        except OSError as error:
            raise WorkbenchError(
                f"'{self.marker}' cannot be read ({error.strerror}): put in its place a file with the number of a "
                f"checkpoint (there are: {self.steps() or 'none'})."
            ) from None
        if not text.isdecimal() or len(text) > DIGITS:
            raise WorkbenchError(
                f"'{self.marker}' holds {text[:40]!r}, not a step: write the number of a checkpoint into it "
                f"(there are: {self.steps() or 'none'})."
            )
        return int(text)

    def find(self) -> tuple[int, Path] | None:
        """Step and folder of the checkpoint in force."""
        step = self.latest()
        if step is None:
            return None
        folder = self.folder / str(step)
        if not folder.is_dir():
            raise WorkbenchError(
                f"'{folder}' is missing, though '{self.marker}' names it: put it back, or write the number of "
                f"another checkpoint into that file (there are: {self.steps() or 'none'})."
            )
        return step, folder

    def save(self, step: int, write: Callable[[Path], None], keep: int) -> None:
        """Publish what `write` writes, then remove all but the newest `keep`."""
        write_folder(self.folder / str(step), write)
        write_file(self.marker, f"{step}\n")
        for old in [number for number in self.steps() if number <= step][:-keep]:
            remove_folder(self.folder / str(old))

    def truncate(self, step: int) -> None:
        """Forget the checkpoints after `step`."""
        latest = self.latest()
        if latest is not None and latest > step:
            kept = [number for number in self.steps() if number <= step]
            if kept:
                write_file(self.marker, f"{kept[-1]}\n")
            else:  # the marker goes while one folder is left, else it would count as lost
                for number in self.steps():
                    if number != latest:
                        remove_folder(self.folder / str(number))
                self.marker.unlink()
        self.clean()

    def clean(self) -> None:
        """Remove what a kill left half-written, half-removed or unpublished."""
        latest = self.latest()
        if latest is not None:
            replaced = self.folder / f".{latest}.old"
            if replaced.exists() and not (self.folder / str(latest)).exists():
                replaced.rename(self.folder / str(latest))  # killed while it was being replaced
        for left in self.folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)
        for step in self.steps():
            if latest is None or step > latest:
                remove_folder(self.folder / str(step))
