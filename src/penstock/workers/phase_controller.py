"""The controller of a run: starts each phase when all workers are ready, passes on Ctrl-C, and feeds the display."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

from penstock.workers.shared_state import CONNECTED, ENDED, FAILED, IN_FLIGHT, PHASE_DONE, READY, SENT, SharedState

__all__ = ["PhaseController", "RunProgress"]

_LEAD_NS = (1_000_000, 30_000_000)
"""Time between the command to start a phase and its start: for a worker in this process, and for child processes, which
poll about every millisecond."""

_ECHO_NS = 100_000_000
"""A wrapper such as `timeout` forwards the SIGINT that the terminal has already sent to the whole process group. A second
signal within this time is such a copy, because nobody presses Ctrl-C twice so fast."""


class RunProgress(NamedTuple):
    """Counts are totals over all workers and all phases so far."""

    phase: int
    began: int
    """Monotonic ns; 0 while connections are being opened."""
    connected: int
    sent: int
    ended: int
    failed: int
    in_flight: int
    stopping: int


class PhaseController:
    def __init__(
        self,
        shared: SharedState,
        phases: int,
        display: Callable[[RunProgress], None] | None,
        must_stop: Callable[[], bool] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        """`must_stop` is polled and returns True when the run has to end; `on_begin` is called before the first request."""
        self._shared = shared
        self._phases = phases
        self._display = display
        self._must_stop = must_stop
        self._on_begin = on_begin
        self._interrupts = 0
        self._interrupted_at = 0
        self._phase = -1
        self._began = 0

    @property
    def interrupts(self) -> int:
        """How often the run was interrupted: 0, 1 or 2."""
        return self._interrupts

    @property
    def began(self) -> bool:
        """True if a first request may have been sent."""
        return self._phase >= 0

    def interrupt(self, now: int | None = None) -> None:
        """Handle Ctrl-C. The first one lets requests in flight finish, the second one cancels them."""
        now = monotonic_ns() if now is None else now
        if self._interrupts and now - self._interrupted_at < _ECHO_NS:
            return
        self._interrupted_at = now
        self._interrupts = min(2, self._interrupts + 1)
        self._shared.stop = max(self._shared.stop, self._interrupts)
        self.show()

    def step(self) -> None:
        """Start the next phase if it is time to, and update the display. Call this every few milliseconds."""
        shared = self._shared
        if self._must_stop is not None and shared.stop == 0 and self._must_stop():
            shared.stop = 1
        ready = shared.stop == 0 and shared.minimum(READY) and shared.minimum(PHASE_DONE) > self._phase
        if ready and self._phase + 1 < self._phases:
            self.show()
            if self._phase < 0 and self._on_begin is not None:
                self._on_begin()
            self._phase += 1
            self._began = monotonic_ns() + _LEAD_NS[shared.workers > 1]
            shared.start_phase(self._phase, self._began)
        self.show()

    def show(self) -> None:
        """Pass the current counts to the display."""
        if self._display is not None:
            shared = self._shared
            self._display(
                RunProgress(
                    max(self._phase, 0),
                    self._began,
                    shared.total(CONNECTED),
                    shared.total(SENT),
                    shared.total(ENDED),
                    shared.total(FAILED),
                    shared.total(IN_FLIGHT),
                    shared.stop,
                )
            )
