"""What the gateway tells its operator: a line on standard error, from whichever of its processes."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stderr.write(f"penstock gateway: {sentence}\n")
        sys.stderr.flush()
