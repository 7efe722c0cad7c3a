"""The progress line. It is drawn by the process that measures, so it must cost next to nothing and never wait: 20 µs every
quarter of a second, and a terminal that does not take it right now misses one update."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from time import monotonic_ns

from penstock.cli.terminal import terminal_width
from penstock.plural import counted
from penstock.schedule.phases import PhasePlan
from penstock.workers.phase_controller import RunProgress

__all__ = ["Display", "step_progress"]

_BAR_NS = 250_000_000
_LINE_NS = 5_000_000_000
_WIDTH = 24
_LEAST_WIDTH = 4
_CLEAR = "\r\x1b[K"


class Display:
    """Shows a run: a bar on a terminal, plain lines every few seconds elsewhere."""

    def __init__(self, phases: tuple[PhasePlan, ...], expected: list[int | None]) -> None:
        self._phases = phases
        self._expected = expected
        self._ended_before = self._failed_before = 0
        """How many had when the phase began: the counters go on."""
        self._phase = -1
        self._due = monotonic_ns() + _BAR_NS
        self._said_stop = 0
        self._tty = sys.stdout.isatty()
        self._out = _writer(self._tty)
        self._last: tuple[RunProgress, int] | None = None

    def __call__(self, progress: RunProgress) -> None:
        now = monotonic_ns()
        if progress.phase != self._phase and progress.began:
            self.finish()
            self._phase = progress.phase
            self._ended_before, self._failed_before = progress.ended, progress.failed
            self._due = now + (_BAR_NS if self._tty else _LINE_NS)
        if progress.stopping > self._said_stop:
            self._said_stop = progress.stopping
            self._say_stop(progress)
        if not progress.began:
            if self._tty and progress.connected and now >= self._due:
                self._due = now + _BAR_NS
                self._out(f"{_CLEAR}Opening connections: {progress.connected}")
            return
        self._last = progress, now
        if now >= self._due:
            self._due = now + (_BAR_NS if self._tty else _LINE_NS)
            if self._tty:
                # One that reached the last column would go on in the next line, and each update would be a line of its own.
                self._out(_CLEAR + self._line(progress, now, width=(terminal_width(sys.stdout) or 80) - 1))
            else:
                self._out(self._line(progress, now) + "\n")

    def _say_stop(self, progress: RunProgress) -> None:
        text = (
            f"Stopping: waiting for {counted(progress.in_flight, 'request')} in flight; Ctrl-C again to stop at once."
            if progress.stopping == 1
            else "Stopping at once."
        )
        self._out((_CLEAR if self._tty else "") + text + "\n")

    def _line(self, progress: RunProgress, now: int, *, over: bool = False, width: int = 1000) -> str:
        plan = self._phases[progress.phase]
        ended = progress.ended - self._ended_before
        failures = progress.failed - self._failed_before
        seconds = max(0.0, (now - progress.began) / 1e9)
        name = plan.name.capitalize()
        expected = self._expected[progress.phase]
        counts, share = f"{ended}", None
        if expected is not None:
            counts, share = f"{ended}/{expected}", ended / expected if expected else 1.0
        if plan.duration_s:
            by_time = min(1.0, seconds / plan.duration_s)
            share = by_time if share is None else max(share, by_time)
        failed = f", {failures} failed" if failures else ""
        # The clock of this line is too coarse for the rate of a shorter time.
        rate = f" {ended / seconds:.1f} requests/s" if seconds > 0.5 else "" if over else " starting"
        if share is None:
            return f"{name}: {counts} [{_clock(seconds)}]{rate}{failed}"[:width]
        # Once it stops, what is left to do is not what was asked for.
        known = share > 0 and not over and not progress.stopping
        left = f"<{_clock(seconds / share - seconds)}" if known else ""
        begin, end = f"{name}: {counts} ", f" {share:.0%} [{_clock(seconds)}{left}]{rate}{failed}"
        return (begin + _bar(share, min(_WIDTH, width - len(begin) - len(end) - 2)) + end)[:width]

    def finish(self) -> None:
        """Leaves the last state of the phase on the screen."""
        if self._last is not None:
            self._out((_CLEAR if self._tty else "") + self._line(*self._last, over=True) + "\n", True)
            self._last = None


def _bar(share: float, width: int) -> str:
    filled = round(share * width)
    return f"|{'█' * filled}{' ' * (width - filled)}|" if width >= _LEAST_WIDTH else ""


def _clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return (
        f"{whole // 60:02d}:{whole % 60:02d}"
        if whole < 3600
        else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    )


def _writer(tty: bool) -> Callable[..., None]:
    fd = sys.stdout.fileno()
    if tty:
        try:  # a file description of our own: making it non-blocking does not touch the shell's
            fd = os.open(os.ttyname(fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            fd = sys.stdout.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLOUT)

    def write(text: str, wait: bool = False) -> None:
        if poll.poll(1000 if wait else 0):
            with contextlib.suppress(OSError):
                os.write(fd, text.encode())

    sys.stdout.flush()
    return write


def step_progress(what: str, quiet: bool) -> Callable[[int, int], None] | None:
    """RunProgress of work before or after the load: a line that is rewritten on a terminal, nothing elsewhere."""
    if quiet or not sys.stdout.isatty():
        return None
    began = time.monotonic()
    shown = [0.0]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if now - began < 0.5:
            return
        if done >= total:
            sys.stdout.write(_CLEAR)
        elif now - shown[0] >= 0.25:
            shown[0] = now
            line = f"{what}: {done}/{total} {done / total:.0%}"
            sys.stdout.write(_CLEAR + line[: (terminal_width(sys.stdout) or 80) - 1])
        sys.stdout.flush()

    return show
