"""Ctrl-C while no requests are sent: end the process before the first request, finish the report after the last.

Before the first request the signal handler itself cleans up and ends the process. A KeyboardInterrupt instead could be lost
(Python ignores exceptions in weakref callbacks, which imports use), become another error (in a C extension that is being
imported) or skip the `__exit__` that it interrupts. While requests are sent, `cli.terminal_observer` handles the signals.

SIGHUP, which a lost connection to the terminal sends, ends a run like Ctrl-C, unless it was ignored at the start (`nohup`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from time import monotonic

from penstock.cli.exit_status import EXIT_INTERRUPTED

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
    terminals: tuple[int, ...] = ()
    """The standard streams that are terminals."""


_state = _State()


def install() -> None:
    """Handle SIGINT and SIGHUP from now on, in a process that is a Penstock command."""
    signal.signal(signal.SIGINT, _handle)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _handle)
        _state.terminals = tuple(stream for stream in range(3) if os.isatty(stream))


def raise_keyboard_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt and SIGHUP end the process, for commands that have nothing to undo."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is _handle:
            signal.signal(number, handler)


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a run which sends requests."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM] if ignored else [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def leave_lost_terminal(number: int) -> None:
    """Let output to the terminal go to /dev/null after SIGHUP: writing to a terminal that is gone fails."""
    if number == signal.SIGHUP:
        for stream in _state.terminals:
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        _state.terminals = ()


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
    """Return the exit status of the process, which is about to end, and ignore the signals from now on."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)
    return status if _state.interrupted_at is None else EXIT_INTERRUPTED


def _handle(number: int, _: object) -> None:
    leave_lost_terminal(number)
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
