"""What a run comes to: the statistics of its phases, what failed, and what else a reader must know."""

from __future__ import annotations

import msgspec

from penstock.metrics.certificate import Certificate, Measured
from penstock.metrics.measure import Measures
from penstock.metrics.phase_stats import ErrorGroup, PhaseStats
from penstock.metrics.statistics import Stats
from penstock.records.log import RunHeader
from penstock.records.record import Record

__all__ = ["Proof", "Summary", "SummaryBuilder", "TokenizerNote"]


class TokenizerNote(msgspec.Struct, frozen=True):
    """Who counted the tokens. `name` is None when nobody did or the server did; the note then says so."""

    name: str | None
    source: str | None
    note: str | None = None


class Proof(msgspec.Struct, frozen=True):
    """What was sent, in one number."""

    requests: int
    """Whose bodies were handed to a socket, warmup included."""
    root: str
    """SHA-256 over the SHA-256 digests of their bodies, in the order of the plan: phase, session, turn."""


class Summary(msgspec.Struct, kw_only=True):
    metrics: dict[str, Stats]
    """Of the profiling phases, in the order of the catalogue."""
    warmup_metrics: dict[str, Stats] | None
    """None when nothing was sent in a warmup."""
    errors: list[ErrorGroup]
    """Failed requests of the profiling phases, the most frequent first."""
    warmup_errors: list[ErrorGroup]
    succeeded: int
    failed: int
    cancelled: int
    warmup_requests: int
    queued: int = 0
    """Requests that were due and found no free slot."""
    longest_queued_ms: float = 0.0
    without_usage: int = 0
    """Replies that carried no token counts of the server."""
    finish_reasons: dict[str, int]
    """One count a choice, the most frequent first."""
    warnings: dict[str, int] = {}
    """Oddities of the replies that failed nothing, the most frequent first."""
    broken_conversations: int = 0
    """Those whose later turns were not sent, because a turn before them failed."""
    start_ns: int
    end_ns: int
    """First start and last end of the profiling phases, in Unix time."""
    tokenizer: TokenizerNote
    was_cancelled: bool = False
    incomplete_reason: str | None = None
    torn_bytes: int = 0
    """What a killed worker left unreadable at the end of its log."""
    torn_requests: bool = False
    """Whether there were requests in it, and not only a worker's report on itself."""
    certificate: Certificate | None = None
    proof: Proof | None = None
    note: str | None = None
    """What else the user should know about the files."""

    @property
    def is_complete(self) -> bool:
        return self.incomplete_reason is None and not self.was_cancelled


class SummaryBuilder:
    """Takes every record of a run once, in any order."""

    def __init__(self, header: RunHeader, folder: str) -> None:
        """`folder` is for what does not fit in memory; its files are of no use afterwards."""
        self._header = header
        self._profiling = PhaseStats(folder, "profiling", scheduled=header.arrivals == "recorded")
        self._warmup = PhaseStats(folder, "warmup")
        self._tallies = [self._warmup if p.kind == "warmup" else self._profiling for p in header.phases]

    def add(self, record: Record, measures: Measures) -> None:
        self._tallies[record.phase].add(record, measures)

    def measured(self) -> Measured:
        """What the certificate must know of the requests."""
        return self._profiling.measured()

    def summary(self, tokenizer: TokenizerNote) -> Summary:
        profiling, warmup = self._profiling, self._warmup
        warmed = warmup.succeeded + warmup.failed + warmup.cancelled
        first, last = profiling.span or (0, 0)
        epoch = self._header.epoch_wall_ns
        return Summary(
            metrics=profiling.metrics(),
            warmup_metrics=warmup.metrics() if warmed else None,
            errors=profiling.errors(),
            warmup_errors=warmup.errors(),
            succeeded=profiling.succeeded,
            failed=profiling.failed,
            cancelled=profiling.cancelled,
            warmup_requests=warmed,
            queued=profiling.queued,
            longest_queued_ms=profiling.longest_queued_ns / 1e6,
            without_usage=profiling.without_usage,
            finish_reasons=_most_first(profiling.finish_reasons),
            warnings=_most_first(profiling.warnings),
            start_ns=epoch + first,
            end_ns=epoch + last,
            tokenizer=tokenizer,
        )


def _most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
