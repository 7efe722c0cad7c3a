"""Starts the phases one after the other when all workers are ready, passes on Ctrl-C, and feeds the display."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

from penstock.workers import shared_state as cells
from penstock.workers.shared_state import SharedState

__all__ = ["PhaseController", "Progress"]

_LEAD_NS = (1_000_000, 30_000_000)
"""How far ahead a start is announced: to a worker in this process, and to others, which look every millisecond or so."""

_ECHO_NS = 100_000_000
"""A wrapper such as `timeout` passes on the Ctrl-C that the terminal has sent to us, too: one that follows sooner than a
finger could is the same one again."""


class Progress(NamedTuple):
    """Counts include those of the phases before this one."""

    phase: int
    began: int
    """Monotonic ns; 0 while connections are being opened."""
    connected: int
    sent: int
    ended: int
    failed: int
    live: int
    stopping: int


class PhaseController:
    def __init__(
        self,
        board: SharedState,
        phases: int,
        display: Callable[[Progress], None] | None,
        look: Callable[[], bool] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        """`look` says whether the run must end; `on_begin` is called before the first request."""
        self._board = board
        self._on_begin = on_begin
        self._look = look
        self._interrupts = 0
        self._interrupted_at = 0
        self._phases = phases
        self._display = display
        self._phase = -1
        self._began = 0

    @property
    def interrupted(self) -> int:
        return self._interrupts

    @property
    def began(self) -> bool:
        """A first request may have been sent."""
        return self._phase >= 0

    def interrupt(self, now: int | None = None) -> None:
        """Ctrl-C: once, finish what is in flight; twice, stop."""
        now = monotonic_ns() if now is None else now
        if self._interrupts and now - self._interrupted_at < _ECHO_NS:
            return
        self._interrupted_at = now
        self._interrupts = min(2, self._interrupts + 1)
        self._board.stop = max(self._board.stop, self._interrupts)
        self.show()

    def step(self) -> None:
        """Call this every few milliseconds."""
        board = self._board
        if self._look is not None and board.stop == 0 and self._look():
            board.stop = 1
        ready = board.stop == 0 and board.least(cells.READY) and board.least(cells.PHASE_DONE) > self._phase
        if ready and self._phase + 1 < self._phases:
            self.show()
            if self._phase < 0 and self._on_begin is not None:
                self._on_begin()
            self._phase += 1
            self._began = monotonic_ns() + _LEAD_NS[board.workers > 1]
            board.go(self._phase, self._began)
        self.show()

    def show(self) -> None:
        """Bring the display up to date."""
        if self._display is not None:
            board = self._board
            self._display(
                Progress(
                    max(self._phase, 0),
                    self._began,
                    board.total(cells.CONNECTED),
                    board.total(cells.SENT),
                    board.total(cells.ENDED),
                    board.total(cells.FAILED),
                    board.total(cells.LIVE),
                    board.stop,
                )
            )
