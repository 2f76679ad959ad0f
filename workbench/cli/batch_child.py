"""A run of a batch, in a process of its own: the command line given, asked to stop should the batch die.

`python -m workbench.cli.batch_child PARENT_PID COMMAND…`
"""

from __future__ import annotations

import os
import signal
import sys


def follow_parent(parent: int) -> None:
    """From now on the end of the parent process, however it comes, is a SIGTERM to this one. Linux only."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before
        sys.exit(143)


if __name__ == "__main__":
    follow_parent(int(sys.argv[1]))
    from workbench.cli.main import main

    main(sys.argv[2:])
