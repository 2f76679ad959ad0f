"""A limit of what is under way at once, for callers on threads and on event loops alike."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future


class Places:
    """`count` places; who finds none free waits, first come first served. Safe from any thread."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Future[None]]:
        """A place to come: the body waits for the future. One who gives up waiting holds no place afterwards."""
        place: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                place.set_result(None)
            else:
                self._waiting.append(place)
        try:
            yield place
        except BaseException:
            if not place.cancel():  # it had come just before
                self.give()
            raise

    def give(self) -> None:
        """Free a place: the one who has waited longest gets it."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        place.set_result(None)
