"""`version`: which one this is."""

from __future__ import annotations

import sys

from penstock import __version__

__all__ = ["run"]


def run(_words: list[str], _program: str) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0
