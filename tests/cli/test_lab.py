from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from workbench.cli.common import environment_path
from workbench.cli.lab import lab_command
from workbench.config import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_the_command_opens_a_notebook_of_the_checkout_or_elsewhere(tmp_path: Path) -> None:
    command = lab_command(ROOT / "notebooks" / "04_training.ipynb", port=8888, browser=False)
    assert f"--ServerApp.root_dir={ROOT}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/04_training.ipynb" in command
    assert "--no-browser" in command
    command = lab_command(tmp_path / "mine.ipynb", port=8888, browser=True)
    assert f"--ServerApp.root_dir={tmp_path}" in command
    assert "--no-browser" not in command


def test_lab_serves_with_news_and_updates_off(tmp_path: Path) -> None:
    port = free_port()
    command = lab_command(ROOT / "notebooks" / "04_training.ipynb", port=port, browser=False)
    command += ["--IdentityProvider.token=secret", "--ServerApp.port_retries=0"]
    environment = {**environment_path(), "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    log = (tmp_path / "log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while True:
                try:
                    settings = json.loads(
                        read(f"{url}/lab/api/settings/@jupyterlab/apputils-extension:notification?token=secret")
                    )
                    break
                except (urllib.error.URLError, ConnectionError):
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                    assert server.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.2)
            properties = settings["schema"]["properties"]
            assert properties["fetchNews"]["default"] == "false"
            assert properties["checkForUpdates"]["default"] is False
            kernels = json.loads(read(f"{url}/api/kernelspecs?token=secret"))
            assert "python3" in kernels["kernelspecs"]
            with pytest.raises(urllib.error.HTTPError, match="403"):
                read(f"{url}/api/contents")
        finally:
            server.terminate()
            server.wait(30)
