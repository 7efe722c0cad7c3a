"""The progress line. The measuring process draws it, so drawing must be cheap and must never block: it takes 20 µs four times
a second, and skips an update when the terminal is not writable."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from time import monotonic_ns

from penstock.cli.phase_progress import clock, remaining_s, share_done, stop_text
from penstock.cli.terminal import terminal_width
from penstock.runs.phase_runner import RunProgress
from penstock.schedule.phase import Phase

_TERMINAL_INTERVAL_NS = 250_000_000
_PLAIN_INTERVAL_NS = 5_000_000_000
_BAR_WIDTH = 24
_MIN_BAR_WIDTH = 4
_CLEAR = "\r\x1b[K"


def _can_redraw() -> bool:
    """Return whether standard output is a terminal that can erase a line. A dumb one would show the control sequence."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Display:
    """Shows the progress of a run: a bar on a terminal, plain lines every few seconds elsewhere."""

    def __init__(self, phases: Sequence[Phase], expected: Sequence[int | None], *, final_lines: bool = True) -> None:
        """With `final_lines`, the last state of each phase stays on the screen."""
        self._final_lines = final_lines
        self._phases = phases
        self._expected = expected
        self._ended_before = self._failed_before = 0
        """Counts at the start of the phase; the counters themselves are never reset."""
        self._phase = self._finished = -1
        """Index of the phase that is shown, and of the last one whose end was shown."""
        self._due = monotonic_ns() + _TERMINAL_INTERVAL_NS
        self._stops_shown = 0
        self._tty = _can_redraw()
        self._out = _writer(self._tty)
        self._last: tuple[RunProgress, int] | None = None
        self._keep: Callable[[str], None] | None = None

    def hand_over(self, keep: Callable[[str], None]) -> None:
        """Leave the terminal to the dashboard: clear the bar, draw nothing more, and pass final lines to `keep`."""
        self._out(_CLEAR, True)
        self._keep = keep

    def take_over(self) -> None:
        """Draw again, after the dashboard."""
        self._keep = None

    def __call__(self, progress: RunProgress) -> None:
        now = monotonic_ns()
        if progress.phase != self._phase and progress.began:
            self.finish()
            self._phase = progress.phase
            self._ended_before, self._failed_before = progress.ended, progress.failed
            self._due = now + (_TERMINAL_INTERVAL_NS if self._tty else _PLAIN_INTERVAL_NS)
        if progress.stopping > self._stops_shown:
            self._stops_shown = progress.stopping
            self._write(stop_text(progress.stopping, progress.in_flight))
        if progress.phase == self._finished:
            return  # the run pauses, and the rate of the phase would fall with every line
        if not progress.began:
            if self._tty and progress.connected and now >= self._due and self._keep is None:
                self._due = now + _TERMINAL_INTERVAL_NS
                self._out(f"{_CLEAR}Opening connections: {progress.connected}")
            return
        self._last = progress, now
        if now >= self._due and self._keep is None:
            self._due = now + (_TERMINAL_INTERVAL_NS if self._tty else _PLAIN_INTERVAL_NS)
            if self._tty:
                # Stay clear of the last column: some terminals would wrap, and each update would start a new line.
                self._out(_CLEAR + self._line(progress, now, width=(terminal_width(sys.stdout) or 80) - 1))
            else:
                self._out(self._line(progress, now) + "\n")

    def _line(self, progress: RunProgress, now: int, *, final: bool = False, width: int = 1000) -> str:
        phase = self._phases[progress.phase]
        ended = progress.ended - self._ended_before
        failures = progress.failed - self._failed_before
        seconds = max(0.0, (now - progress.began) / 1e9)
        name = f"{phase.name[:1].upper()}{phase.name[1:]}"
        expected = self._expected[progress.phase]
        counts = f"{ended}" if expected is None else f"{ended}/{expected}"
        share = share_done(ended, expected, seconds, phase.duration_s)
        failed = f", {failures} failed" if failures else ""
        # Progress is updated too rarely for a meaningful rate over a shorter time.
        rate = f" {ended / seconds:.1f} requests/s" if seconds > 0.5 else "" if final else " starting"
        if share is None:
            return f"{name}: {counts} [{clock(seconds)}]{rate}{failed}"[:width]
        # A run that is stopping sends no more requests, so the remaining time is unknown.
        left = None if final or progress.stopping else remaining_s(share, seconds)
        remaining = "" if left is None else f"<{clock(left)}"
        start, end = f"{name}: {counts} ", f" {share:.0%} [{clock(seconds)}{remaining}]{rate}{failed}"
        return (start + _bar(share, min(_BAR_WIDTH, width - len(start) - len(end) - 2)) + end)[:width]

    def finish(self) -> None:
        """Write the final line of the phase."""
        if self._last is not None:
            if self._final_lines:
                self._write(self._line(*self._last, final=True), True)
            elif self._tty and self._keep is None:
                self._out(_CLEAR, True)
            self._last = None
        self._finished = self._phase

    def _write(self, line: str, wait: bool = False) -> None:
        """Write a line that stays on the screen."""
        if self._keep is not None:
            self._keep(line)
        else:
            self._out((_CLEAR if self._tty else "") + line + "\n", wait)


class StatusLine:
    """A line about work without requests. On a terminal it is rewritten; elsewhere a new one appears every few seconds."""

    def __init__(self) -> None:
        self._tty = _can_redraw()
        self._due = 0
        self._shown = False

    def show(self, line: str) -> None:
        now = monotonic_ns()
        if now < self._due:
            return
        self._due = now + (_TERMINAL_INTERVAL_NS if self._tty else _PLAIN_INTERVAL_NS)
        self._shown = True
        if self._tty:
            sys.stdout.write(_CLEAR + line[: (terminal_width(sys.stdout) or 80) - 1])
        else:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._tty and self._shown:
            sys.stdout.write(_CLEAR)
            sys.stdout.flush()


def _bar(share: float, width: int) -> str:
    filled = round(share * width)
    return f"|{'█' * filled}{' ' * (width - filled)}|" if width >= _MIN_BAR_WIDTH else ""


def _writer(tty: bool) -> Callable[..., None]:
    fd = sys.stdout.fileno()
    if tty:
        try:  # a separate file description, so that the shell's stays blocking
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


def step_progress(task: str, enabled: bool) -> Callable[[int, int], None] | None:
    """Return a progress callback for work before or after the load. It rewrites one line, on a terminal only."""
    if not enabled or not _can_redraw():
        return None
    began = monotonic_ns()
    line = StatusLine()

    def show(done: int, total: int) -> None:
        if done >= total:
            line.clear()
        elif monotonic_ns() - began >= 2 * _TERMINAL_INTERVAL_NS:
            line.show(f"{task}: {done}/{total} {done / total:.0%}")

    return show
