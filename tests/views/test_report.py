from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from workbench.cli.report import report
from workbench.config import Config
from workbench.run import Run
from workbench.types import WorkbenchError
from workbench.views.report import render, write_report


class Tags(HTMLParser):
    """Names of all elements and all attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links.extend(value or "" for name, value in attrs if name in ("src", "href"))


@pytest.fixture
def full_run(run: Run, measured: tuple[dict, dict]) -> Run:
    before, after = measured
    event = {"step": 2, "at": 1.7e9, "knob": "temperature", "old": 1.0, "new": 1.3, "source": "panel"}
    run.commit(4, knob_events=[{**event, "outcome": "applied", "reason": ""}])
    summary = {"before": before, "after": after}
    summary |= {"valid_before": 0.25, "valid_after": 0.9, "reward_before": 0.2, "reward_after": 0.6, "seed": 0}
    run.set_meta("summary", summary)
    return run


def test_one_offline_file_without_script(full_run: Run) -> None:
    page = render(full_run)
    found = Tags(page)
    assert not found.tags & {"script", "img", "iframe", "object", "embed", "link", "b"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert found.links == []
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "default-src 'none'" in page
    assert len(page) < 1_000_000


def test_it_says_what_a_report_must(full_run: Run) -> None:
    page = render(full_run)
    for text in (
        "Summary",
        "0.250 before → 0.900 after",
        "Valid drafts by task",
        "Failures of drafts by kind",
        "Learning curve",
        "Outcome of the actions",
        "Time per stage",
        "Sample rollouts",
        "Knobs turned",
        "temperature",
        "panel",
        "Settings at the start",
        "max_completion_tokens",
        "Machine and versions",
        "2.13",
        "isolation level of the sandbox</th><td>A</td>",
        "@media print",
    ):
        assert text in page, text
    assert page.count('<details class="wb-turn"') >= 2
    assert page.count("<svg xmlns") == 7


def test_model_output_cannot_leave_its_place(full_run: Run) -> None:
    page = render(full_run)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert not re.search(r"<script|<img|onerror=(?!alert\(2\)&gt;)", page)


def test_a_run_that_goes_on_or_has_no_step(run: Run, tmp_path: Path) -> None:
    assert "has not reached its end" in render(run)
    with Run.create(tmp_path / "new", Config(), {}) as new:
        page = render(new)
    assert "No step has been recorded yet" in page
    assert "None: the settings below held" in page


def test_resumes_that_are_not_exact_are_told(full_run: Run) -> None:
    assert "not exact" not in render(full_run)
    resumes = [{"step": 2, "changed": ["torch"], "environment": {"torch": "<3>"}}]
    full_run.set_meta("resumes", resumes)
    page = render(full_run)
    assert "Resumes that are not exact" in page
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page[page.index("Resumes that are not exact") :])
    assert cells == ["2", "torch", "2.13", "&lt;3&gt;"]


def test_scripts_and_streams_are_read_of_what_is_shown_only(full_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = full_run.turns, []
    monkeypatch.setattr(full_run, "turns", lambda step=None, **more: asked.append((step, more)) or read(step, **more))
    page = render(full_run)
    assert "SyntaxError" in page
    (everything,) = [more for step, more in asked if step is None]
    assert not {"text", "code", "reason", "stdout", "stderr"} & set(everything["columns"])


def test_command_writes_whole_files_and_says_why_not(full_run: Run, tmp_path: Path) -> None:
    assert report(full_run.path) == full_run.path / "report.html"
    target = report(full_run.path, tmp_path / "mine.html")
    assert target.read_text().startswith("<!doctype html>")
    assert not list(tmp_path.glob(".*aside"))
    with pytest.raises(WorkbenchError, match="is no run"):
        report(tmp_path / "none")
    with pytest.raises(WorkbenchError, match="cannot be written"):
        write_report(full_run, tmp_path / "missing" / "report.html")
    for folder in (Path(), Path(".."), tmp_path):
        with pytest.raises(WorkbenchError, match="is a folder: name the report's file"):
            write_report(full_run, folder)
