"""Panel and kernel, without a browser: what a front end would send is sent on the kernel's shell channel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

SETUP = """
from workbench.config import Config
from workbench.control import Control
from workbench.run import Run
from workbench.views.live import Dashboard
from workbench.views.progress import has_front_end
run = Run.create({path!r}, Config(steps=5), {{}})
control = Control(run.config)
dashboard = Dashboard(run, control, tick_s=0.1)
dashboard.show()
panel = dashboard.panel
"""


class Kernel:
    """A kernel with a client that answers questions, as a front end does."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, *, allow_stdin: bool = True) -> tuple[str, list[dict[str, Any]]]:
        """(what the cell printed, its messages); errors of the cell are raised."""
        sent = self.client.execute(code, allow_stdin=allow_stdin)
        printed, messages = "", []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append(message)
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
            if message["msg_type"] == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return printed, messages

    def value(self, expression: str) -> Any:
        printed, _ = self.run(f"print(repr({expression}))")
        return eval(printed)

    def touch(self, model_id: str, **state: Any) -> None:
        """What a browser sends when the user moves a slider."""
        data = {"method": "update", "state": state, "buffer_paths": []}
        message = self.client.session.msg("comm_msg", {"comm_id": model_id, "data": data})
        self.client.shell_channel.send(message)

    def press(self, model_id: str) -> None:
        data = {"method": "custom", "content": {"event": "click"}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", {"comm_id": model_id, "data": data}))

    def wait(self, expression: str, seconds: float = 5.0) -> float:
        started = time.monotonic()
        while not self.value(expression):
            assert time.monotonic() - started < seconds, expression
            time.sleep(0.05)
        return time.monotonic() - started


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    kernel = Kernel(manager)
    yield kernel
    kernel.client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def test_a_slider_moved_by_a_front_end_is_a_request(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(SETUP.format(path=str(tmp_path / "run")))
    model = kernel.value("panel.knobs['temperature'].model_id")
    kernel.touch(model, value=1.3)
    assert kernel.wait("len(control.pending()) == 1") < 1.5
    assert kernel.value("[(r.knob, r.new, r.source) for r in control.record()]") == [("temperature", 1.3, "panel")]
    assert kernel.value("control.boundary(1).temperature") == 1.3
    kernel.wait("'1.3 applied at step 1' in panel.outcomes['temperature'].value")
    kernel.press(kernel.value("panel.buttons['stop'].model_id"))
    kernel.wait("control.status == 'stopping'")


def test_updates_of_the_dashboard_stay_out_of_other_cells(kernel: Kernel, tmp_path: Path) -> None:
    """While the clock brings new steps in, other cells get no output but their own."""
    kernel.run(SETUP.format(path=str(tmp_path / "run")))
    code = (
        "import time\nfor step in range(1, 6):\n"
        "    run.commit(step, metrics={'reward_mean': 0.1 * step}); time.sleep(0.3)\nprint('mine')"
    )
    printed, messages = kernel.run(code)
    assert printed == "mine\n"
    outputs = {message["msg_type"] for message in messages} - {"status", "execute_input", "stream", "comm_msg"}
    assert outputs == set()
    kernel.wait("len(dashboard.figure.data[0].x) == 5")


@pytest.mark.parametrize(("allow_stdin", "expected"), [(True, "True\n"), (False, "False\n")])
def test_a_front_end_is_told_from_a_batch_run(kernel: Kernel, allow_stdin: bool, expected: str) -> None:
    code = "from workbench.views.progress import has_front_end; print(has_front_end())"
    assert kernel.run(code, allow_stdin=allow_stdin)[0] == expected
