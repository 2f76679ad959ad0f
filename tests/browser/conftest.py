"""A JupyterLab of its own on a copy of the notebooks, and a page of Debian's Chromium in it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workbench.config import ROOT

TOKEN = "workbench-test"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
HOW = "install what the browser tests need: apt-get install -y chromium && .venv/bin/pip install playwright"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@dataclass
class Lab:
    """A running server: its address, the folder it shows, and a way to ask its API."""

    base: str
    folder: Path

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base}/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def end_kernels(self) -> None:
        for kernel in self.api("kernels"):
            self.api(f"kernels/{kernel['id']}", "DELETE")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    folder.mkdir()
    port = free_port()
    settings = ROOT / "workbench" / "cli" / "lab_settings"
    environment = {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **{f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")},
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--ServerApp.root_dir={folder}", f"--LabApp.app_settings_dir={settings}", "--LabApp.news_url=None"]
    log = (home / "lab.log").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    found = Lab(f"http://127.0.0.1:{port}", folder)
    try:
        wait_for(found, process, home / "lab.log")
        yield found
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            lab.api("status")
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip(f"no Chromium: {HOW}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(f"no Playwright: {HOW}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, lab: Lab) -> Iterator[Any]:
    """A fresh page; errors of the page and requests that leave this machine fail the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if outside(request.url) else None)
    yield page
    context.close()
    lab.end_kernels()
    assert not problems


def outside(url: str) -> bool:
    return url.startswith(("http", "ws")) and "//127.0.0.1" not in url


def open_notebook(page: Any, lab: Lab, name: str) -> Any:
    """Open a notebook of the server's folder and return its panel once its kernel is idle."""
    page.goto(f"{lab.base}/lab/workspaces/test/tree/{name}?token={TOKEN}&reset")
    page.wait_for_selector("#jupyterlab-splash", state="detached", timeout=60_000)
    wait_for_kernel(page)
    return page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")


def wait_for_kernel(page: Any) -> None:
    """Until the page is connected to a kernel: JupyterLab drops, without a word, a Run All that comes before."""
    page.locator("#jp-main-statusbar").get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)


def run_all(page: Any) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()


@pytest.fixture
def opened(page: Any, lab: Lab) -> Any:
    """A function: notebook name → its panel on the page."""
    return lambda name: open_notebook(page, lab, name)


@pytest.fixture
def all_cells(page: Any) -> Any:
    return lambda: run_all(page)


@pytest.fixture
def connected(page: Any) -> Any:
    return lambda: wait_for_kernel(page)
