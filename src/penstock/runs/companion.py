"""Companions: what works beside a run, such as the indexing of input files or the collection of server metrics.

A companion never runs on the event loop that measures: while a run has one, its workers are child processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.schedule.phase import Phase
from penstock.workers.messages import Event

if TYPE_CHECKING:
    from penstock.runs.phase_runner import RunProgress


class CompanionControl(Protocol):
    """What a companion can ask of its run."""

    @property
    def progress(self) -> RunProgress: ...

    def data_complete(self) -> None:
        """Tell the workers that the dataset is complete."""
        ...

    def add_sample(self, source: str, at_ns: int, values: dict[str, Any]) -> None:
        """Write a sample to the log of the run. `at_ns` is on the monotonic clock."""
        ...


class Companion:
    def start(self, control: CompanionControl) -> None:
        """Start. The workers have not been started yet."""

    def poll(self) -> bool:
        """Do what is due, within a few milliseconds, and return whether the run must stop. Called about every 10 ms."""
        return False

    def between_phases(self) -> None:
        """Do what must happen while no request is in flight. Called before each phase and after it; the next phase waits for
        it."""

    def before_phase(self, phase: Phase) -> None:
        """Do what must happen before a phase. Raise UserError if it must not start."""

    def after_phase(self, phase: Phase) -> None:
        """Do what must happen after a phase."""

    def worker_event(self, event: Event) -> None:
        """Handle an event of a worker."""

    def finish(self) -> str | None:
        """End. Return why the run had to stop, or None."""
        return None
