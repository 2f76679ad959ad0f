"""`workbench report RUN [--out FILE.html]`."""

from __future__ import annotations

from pathlib import Path


def report(run_path: Path, out: Path | None = None) -> Path:
    """Write the report of a run (default `RUN/report.html`) and return its path. The run may still be going on.

    Raises WorkbenchError when the folder holds no run or the file cannot be written.
    """
    from workbench.run import Run
    from workbench.views.report import write_report

    return write_report(Run.open(run_path, readonly=True), out)
