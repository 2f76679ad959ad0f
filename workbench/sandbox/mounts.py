"""What a run can see: the interpreter, a chosen set of libraries, its own public folder. Everything else is absent.

A plan is a list of `Mount`s, parents first. Bubblewrap carries it out, or `launch.py` where bubblewrap is missing, or
Landlock where there are no namespaces (then as permissions instead of mounts).
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.config import ROOT

LIBRARIES = ("numpy", "pandas", "scipy", "scikit-learn", "matplotlib", "xgboost", "lightgbm", "catboost")
"""Distributions visible inside, where installed, with what they require. Packages with data sets stay outside."""

MASKED = (
    "sklearn/datasets/data",
    "sklearn/datasets/tests",
    "sklearn/datasets/images",
    "matplotlib/mpl-data/sample_data",
)
"""Bundled data: rows of a task could be looked up here. Relative to a site-packages folder."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
BOX, DATA, JOB = "/box", "/data", "/job"
"""Inside: our scripts, all public folders (hidden from a run), the run's working folder."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True, slots=True)
class Mount:
    kind: Literal["bind", "tmpfs", "symlink", "device"]
    path: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A plan, and what of it a run may read, as Landlock permissions."""

    mounts: tuple[Mount, ...]
    readable: tuple[str, ...]
    """Paths whose content may be read and executed."""
    listable: tuple[str, ...]
    """Folders that may be listed: the import system does."""
    temporary: str
    """The run's folder for temporary files: /tmp, unless something shown lies below it."""


def below(path: str, folders: Sequence[str]) -> bool:
    """Whether `path` is one of `folders` or lies in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


@functools.cache
def library_paths() -> tuple[str, ...]:
    """Files and folders of `LIBRARIES` and of everything they require, as installed for this interpreter."""
    queue, seen, found = list(LIBRARIES), set[str](), set[str]()
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in distribution.requires or ():
            requirement = re.match(r"[A-Za-z0-9._-]+", line)
            if requirement and "extra ==" not in line:
                queue.append(requirement.group())
        tops = {file.parts[0] for file in distribution.files or ()}
        found |= {str(distribution.locate_file(top)) for top in tops if top not in ("..", "__pycache__")}
    return tuple(sorted(path for path in found if os.path.exists(path)))


@functools.cache
def _interpreter() -> tuple[str, ...]:
    """Folders of the standard library and the executable, and the few files of a virtual environment."""
    base = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    found = {sys.base_prefix, os.path.realpath(sys.base_prefix), base}
    if sys.prefix != sys.base_prefix:
        found |= {f"{sys.prefix}/{name}" for name in ("bin", "pyvenv.cfg")}
    return tuple(sorted(found - {"/", str(Path.home())}))


@functools.cache
def _site_folders() -> tuple[str, ...]:
    """Every place packages may be installed in; only `library_paths()` of them are shown."""
    named = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    based = [f"{base}/lib/{version}/site-packages" for base in (*_interpreter(), "/usr", "/usr/local")]
    distro = ["/usr/lib/python3/dist-packages", f"/usr/local/lib/{version}/dist-packages"]
    parents = [os.path.dirname(path) for path in library_paths()]
    found = {*named, *based, *distro, *site.getsitepackages(), *parents}
    return tuple(sorted(path for path in found if os.path.isdir(path)))


def view(public: Mapping[str, Path], hidden: Sequence[Path] = ()) -> View:
    """The plan for one zygote. `public`: path inside (below /data) → folder outside; `hidden`: never shown."""
    system = [path for path in _SYSTEM if os.path.exists(path)]
    if sys.base_prefix.startswith("/nix/"):
        system.append("/nix/store")
    links = {path: os.readlink(path) for path in system if os.path.islink(path)}
    shown = [*(path for path in system if path not in links), *_interpreter()]
    masks = [str(path) for path in (ROOT, Path.home(), *hidden) if below(str(path), shown) and str(path) not in shown]
    sites, libraries = _site_folders(), library_paths()
    bundled = [f"{folder}/{name}" for folder in sites for name in MASKED if os.path.isdir(f"{folder}/{name}")]
    covered = (*masks, *sites, *(path for path in bundled if below(path, libraries)))
    temporary = "/jobtmp" if any(below(path, ["/tmp"]) for path in (*shown, *libraries)) else "/tmp"
    plan = {path: Mount("tmpfs", path) for path in covered}
    plan |= {path: Mount("bind", path, path) for path in (*shown, *libraries)}
    plan |= {path: Mount("symlink", path, target) for path, target in links.items()}
    plan |= {path: Mount("tmpfs", path) for path in ("/dev", "/dev/shm", JOB, temporary, BOX, DATA)}
    plan |= {path: Mount("device", path) for path in DEVICES}
    here = Path(__file__).parent
    plan |= {
        f"{BOX}/{name}": Mount("bind", f"{BOX}/{name}", str(here / name))
        for name in ("zygote.py", "program.py", "family.py", "jail.py")
    }
    plan |= {inside: Mount("bind", inside, str(outside)) for inside, outside in public.items()}
    return View(_parents_first(plan), (*shown, *libraries), sites, temporary)


def uncovered(view: View) -> tuple[str, ...]:
    """What may be read where nothing can be mounted over a folder: `view.readable`, less what is masked."""
    covered = [mount.path for mount in view.mounts if mount.kind == "tmpfs"]
    around = [piece for path in view.readable[: -len(library_paths())] for piece in _without(path, covered)]
    return tuple(dict.fromkeys((*around, *(piece for path in library_paths() for piece in _without(path, covered)))))


def _without(path: str, masks: Sequence[str]) -> list[str]:
    """`path` taken apart until no piece contains a mask: what may be read where nothing can be mounted over it."""
    if path in masks:
        return []
    if not any(below(mask, [path]) for mask in masks) or not os.path.isdir(path):
        return [path]
    return [piece for name in sorted(os.listdir(path)) for piece in _without(f"{path.rstrip('/')}/{name}", masks)]


def _parents_first(plan: Mapping[str, Mount]) -> tuple[Mount, ...]:
    """Sorted by depth, without what an earlier bind of the same place already shows."""
    kept: list[Mount] = []
    for path in sorted(plan, key=lambda path: (path.count("/"), path)):
        mount = plan[path]
        over = [other for other in kept if below(path, [other.path])]
        covering = max(over, key=lambda other: len(other.path), default=None)
        redundant = mount.kind == "bind" and covering is not None and covering.kind == "bind"
        if redundant and covering is not None and mount.source == covering.source + path[len(covering.path) :]:
            continue
        kept.append(mount)
    return tuple(kept)


def parents(mounts: Sequence[Mount]) -> list[str]:
    """Folders that must be made before: every ancestor that no mount provides, parents first."""
    needed = {str(folder) for mount in mounts for folder in Path(mount.path).parents} - {"/"}
    given = [mount.path for mount in mounts if mount.kind == "bind"]
    return sorted((path for path in needed if not below(path, given)), key=lambda path: (path.count("/"), path))
