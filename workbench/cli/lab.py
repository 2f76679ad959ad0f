"""`workbench lab`: JupyterLab on the notebooks, without calls to the outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workbench.cli.common import environment_path
from workbench.config import ROOT

SETTINGS = Path(__file__).parent / "lab_settings"
"""Holds overrides.json, which switches off the news and the look-up of updates."""


def lab_command(notebook: Path, *, port: int, browser: bool) -> list[str]:
    """The command that serves the checkout (or the folder of a notebook that lies elsewhere) and opens a notebook."""
    opened = notebook.resolve()
    root = ROOT if opened.is_relative_to(ROOT) else opened.parent
    return [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{opened.relative_to(root).as_posix()}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        f"--ServerApp.port={port}",
        *(() if browser else ("--no-browser",)),
        *(("--allow-root",) if os.getuid() == 0 else ()),  # in a container; the token still guards the server
    ]


def lab(name: str, *, port: int, browser: bool) -> None:
    """Become JupyterLab; does not return."""
    from workbench.cli.notebook import find

    command = lab_command(find(name), port=port, browser=browser)
    os.execve(command[0], command, environment_path())
