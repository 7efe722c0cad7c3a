"""Ctrl-C while no requests are sent: end the process before the first request, finish the report after the last.

Before the first request the signal handler itself cleans up and ends the process. A KeyboardInterrupt instead could be lost
(Python ignores exceptions in weakref callbacks, which imports use), become another error (in a C extension that is being
imported) or skip the `__exit__` that it interrupts. While requests are sent, `workers.local_processes` handles Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from time import monotonic

from penstock.cli.exit_status import EXIT_INTERRUPTED

__all__ = ["finish", "install", "load_began", "raise_keyboard_interrupt", "undo_on_interrupt"]

_ECHO_S = 0.1
"""A wrapper such as `timeout` forwards the SIGINT that the terminal has already sent: a second one within this time."""


class _State:
    message = "Interrupted."
    undo: Callable[[], None] | None = None
    """Removes what the command has written before its first request."""
    folder: str | None = None
    """Folder of the run, once requests have been sent."""
    interrupted_at: float | None = None
    """When the first Ctrl-C after the load arrived."""


_state = _State()


def install() -> None:
    """Handle SIGINT from now on, in a process that is a Penstock command."""
    signal.signal(signal.SIGINT, _handle)


def raise_keyboard_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt, for commands that have nothing to undo."""
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def undo_on_interrupt(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if Ctrl-C ends the process before the first request."""
    _state.message = "Interrupted before the first request: nothing was written."
    _state.undo, _state.folder, _state.interrupted_at = undo, None, None
    try:
        yield
    finally:
        _state.undo = None


def load_began(folder: str) -> None:
    """Let Ctrl-C no longer end the process at once, so that the run in `folder` gets its report."""
    _state.folder = folder


def finish(status: int) -> int:
    """Return the exit status of the process, which is about to end, and ignore SIGINT from now on."""
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status if _state.interrupted_at is None else EXIT_INTERRUPTED


def _handle(*_: object) -> None:
    if _state.folder is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if _state.undo is not None:
            with contextlib.suppress(Exception):
                _state.undo()
        _exit(_state.message)
    now = monotonic()
    if _state.interrupted_at is None:
        _state.interrupted_at = now
        _print("Interrupted: finishing the report; press Ctrl-C again to leave it unfinished.")
    elif now - _state.interrupted_at > _ECHO_S:
        _exit(f"Interrupted: the report is unfinished; `penstock report {_state.folder}` writes it.")


def _exit(message: str) -> None:
    with contextlib.suppress(Exception):  # the handler may have interrupted a write to the same stream
        sys.stdout.flush()
    _print(message)
    os._exit(EXIT_INTERRUPTED)


def _print(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{message}\n".encode())
