"""Messages for the operator of the gateway, written to standard error by any of its processes."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["log_operator_message"]


def log_operator_message(message: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        sys.stderr.write(f"penstock gateway: {message}\n")
        sys.stderr.flush()
