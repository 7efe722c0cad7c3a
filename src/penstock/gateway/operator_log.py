"""Messages for the operator of the gateway, written to standard error by any of its processes, one JSON object per line.

{"time":"2026-06-01T12:00:00.000Z","level":"error","worker":0,"message":"..."}
"""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

Level = Literal["info", "warning", "error"]

_context: dict[str, int | None] = {"worker": None}


class OperatorLog(Protocol):
    """A function that logs a message, such as `log_operator_message`."""

    def __call__(self, message: str, level: Level = "info") -> None: ...


def set_worker_number(number: int) -> None:
    """Name the worker in all further messages of this process. Those of the main process have the worker `null`."""
    _context["worker"] = number


def log_operator_message(message: str, level: Level = "info") -> None:
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = msgspec.json.encode({"time": time, "level": level, **_context, "message": message}).decode()
    with contextlib.suppress(OSError):  # standard error is closed
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
