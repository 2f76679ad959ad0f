"""Property tests here take the same examples every time, and as long as a busy machine needs."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("learning", deadline=None, derandomize=True)
settings.load_profile("learning")
