"""Every committed notebook: source only, stable cell ids, one annotated parameters cell, small."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from workbench.config import ROOT
from workbench.views.parameters import TYPES, declarations

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEPT_METADATA = {"kernelspec", "language_info"}


def cells(book: Any, tag: str) -> list[Any]:
    return [cell for cell in book.cells if tag in cell.metadata.get("tags", ())]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def book(path: Path) -> Any:
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return found


def test_there_are_notebooks() -> None:
    assert any(path.stem == "04_training" for path in NOTEBOOKS)


def test_no_outputs_and_no_run_metadata(book: Any, path: Path) -> None:
    for cell in book.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
        assert set(cell.metadata) <= {"tags"}, "papermill's and the editor's metadata are stripped"
    assert set(book.metadata) <= KEPT_METADATA
    assert book.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < 60_000


def test_cell_ids_are_unique_stable_and_in_order(book: Any, path: Path) -> None:
    number = path.stem.split("_")[0]
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"nb{number}-c\d\d", found) for found in ids)
    assert ids == sorted(ids)


def test_one_parameters_cell_with_annotated_constants(book: Any) -> None:
    (cell,) = cells(book, "parameters")
    for statement in ast.parse(cell.source).body:
        assert isinstance(statement, ast.AnnAssign), "every parameter has a type"
        assert ast.unparse(statement.annotation).removesuffix(" | None") in TYPES
        ast.literal_eval(statement.value)
    declared, _ = declarations([cell.source])
    assert declared["preset"] == "str"
    following = book.cells[book.cells.index(cell) + 1]
    assert "check_parameters(" in following.source


def test_papermill_reads_all_names_and_types(path: Path, book: Any) -> None:
    """It passes over a line with a second `=` in its comment, and over a type with `|`."""
    import papermill

    found = papermill.inspect_notebook(str(path))
    assert found.keys() == declarations([cells(book, "parameters")[0].source])[0].keys()
    assert all(value["inferred_type_name"].removesuffix(" | None") in TYPES for value in found.values())
    assert all(value["help"] for value in found.values()), "a comment says what each parameter is"


def test_it_starts_with_a_title_and_what_it_is(book: Any) -> None:
    lines = book.cells[0].source.splitlines()
    assert re.match(r"# \d\d ", lines[0])
    assert lines[2].startswith("> ")
    assert 10 <= len(book.cells) <= 25


def test_strip_and_format_change_nothing(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    ruff, nbstripout = (Path(sys.executable).parent / name for name in ("ruff", "nbstripout"))
    if not (ruff.exists() and nbstripout.exists()):
        pytest.skip("ruff or nbstripout is missing: make hooks installs them")
    subprocess.run([nbstripout, "--keep-id", copy], check=True)
    subprocess.run([ruff, "format", "--config", ROOT / "pyproject.toml", copy], check=True, capture_output=True)
    assert json.loads(copy.read_text()) == json.loads(path.read_text())
