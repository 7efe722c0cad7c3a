"""The interface through which a run reports its preparation and its progress. The command line shows them; a library caller
may ignore them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.endpoints.base import Endpoint
    from penstock.records.log import Sample
    from penstock.runs.phase_runner import PhaseRunner, RunProgress
    from penstock.runs.points import Point, PointOutcome
    from penstock.runs.prepare import Prepared
    from penstock.schedule.phase import Phase
    from penstock.settings.schema import Settings
    from penstock.tokens.lazy_tokenizer import LazyTokenizer


class Observer:
    """Ignores everything; a subclass overrides the methods for what it shows."""

    def step(self, task: str) -> Callable[[int, int], None] | None:
        """Return the function to call with the progress of a step of preparation or reporting: items done, and all items."""
        del task
        return None

    def waiting(self, seconds: float, timeout: float, reason: str) -> None:
        """Handle the time that was waited for the server, about every 0.1 s, and why it is not ready."""

    def waited(self) -> None:
        """Handle the end of waiting for the server."""

    def prepared(self, settings: Settings, endpoint: Endpoint, tokenizer: LazyTokenizer, prepared: Prepared) -> None:
        """Handle a run that is ready to start."""

    def note(self, text: str) -> None:
        """Handle a note about the input files, or about what works beside the run."""

    def running(self, runner: PhaseRunner) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the run is executed, for example one in which Ctrl-C interrupts the runner."""
        del runner
        return contextlib.nullcontext()

    def begin(self) -> None:
        """Handle the moment before the first request."""

    def point_begins(self, point: Point, phases: list[Phase], expected: list[int | None]) -> None:
        """Handle a point that is about to start, with its phases and their numbers of requests."""

    def point_ended(self, result: PointOutcome) -> None:
        """Handle the result of a point of an experiment."""

    def progress(self, progress: RunProgress) -> None:
        """Handle the progress, about every 10 ms."""

    def sample(self, sample: Sample) -> None:
        """Handle a sample of telemetry."""

    def finished(self) -> None:
        """Handle the end of the last phase."""
