"""The messages between a run and its workers: commands to a worker, and events from it.

There is one message per phase or change, and progress ten times a second, but never one per request.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.records.worker_report import WorkerReport
from penstock.schedule.phase import Phase
from penstock.wire.stats import DurationSketch

# -- commands ---------------------------------------------------------------------------------------------------------


class StartPhase(msgspec.Struct, frozen=True):
    """Start a phase. A phase that is still running sends until then, and its requests in flight keep their slots."""

    index: int
    phase: Phase
    start: int
    """On the worker's monotonic clock, in ns."""
    connections: int = 0
    """Idle connections to have, over all workers and URLs. Servers close those that were unused for some seconds."""


class SetLimits(msgspec.Struct, frozen=True):
    """Change limits of the running phase. The values are those of all workers together; None leaves a limit as it is."""

    slots: int | None = None
    prefill_slots: int | None = None


class Stop(msgspec.Struct, frozen=True):
    """End the running phase early. Level 1: send nothing more; 2: cancel the requests in flight, too."""

    level: int


class LoadData(msgspec.Struct, frozen=True):
    """Take the conversations of the next phases from another payload store."""

    folder: str
    files: tuple[str, ...] = ()
    """Input files that bodies are read from."""
    seed: int | None = None
    """Seed of their order; None for the seed of the job."""


class DataComplete(msgspec.Struct, frozen=True):
    """The input files are indexed to their end."""


class Close(msgspec.Struct, frozen=True):
    """End the worker."""


Command = StartPhase | SetLimits | Stop | LoadData | DataComplete | Close

# -- events -----------------------------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True):
    """Connections that the worker has opened so far, before the first phase."""

    count: int


class Ready(msgspec.Struct, frozen=True):
    """The worker can start a phase."""


class ErrorCause(NamedTuple):
    """Why a request failed."""

    type: str
    status: int | None
    owner: str


class Progress(msgspec.Struct, frozen=True):
    """Counts of the worker over all phases so far, and measures of the running phase.

    Durations are those of every eighth request."""

    sent: int = 0
    ended: int = 0
    failed: int = 0
    in_flight: int = 0
    latency: DurationSketch = msgspec.field(default_factory=DurationSketch)
    first_content: DurationSketch = msgspec.field(default_factory=DurationSketch)
    chunk_gap: DurationSketch = msgspec.field(default_factory=DurationSketch)
    """Time between two chunks of a stream."""
    waiting: int = 0
    """Requests that are due and wait for a slot."""
    tokens: int = 0
    """Output tokens of the requests that ended: those that the server counted, or chunks."""
    tokens_reads: int = 0
    """Network reads in which these tokens arrived."""
    reads: int = 0
    """Network reads of all requests."""
    errors: dict[ErrorCause, int] = {}
    """Failed requests by cause."""
    stamps: int = 0
    """Arrival times of content."""
    coalesced_stamps: int = 0
    report: WorkerReport | None = None
    """The worker's report so far."""
    oldest: int = 0
    """When the oldest request in flight was issued, as in its record; without one, the time of this message."""


class PhaseDone(msgspec.Struct, frozen=True):
    """The phase has ended on this worker, and its report is in the log."""

    index: int
    progress: Progress
    next_number: int
    """One more than the number of the last session that it started."""


class ChangedFile(msgspec.Struct, frozen=True):
    """A body is missing in the input file with this number (from 1)."""

    file: int


class WorkerFailed(msgspec.Struct, frozen=True):
    """The worker ends with an error."""

    kind: str
    """`user`, `run` or `traceback`."""
    text: str


class WorkerDied(msgspec.Struct, frozen=True):
    """The worker's process has ended without being told to."""

    how: str
    """What ended it, such as `was killed by signal 9`."""


Event = Connected | Ready | Progress | PhaseDone | ChangedFile | WorkerFailed | WorkerDied
