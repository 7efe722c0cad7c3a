"""The figures of the dashboard, derived from snapshots: rates, percentiles, their recent values, and the certificate so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.cli.dashboard.snapshot import Header, Snapshot
from penstock.metrics.certificate import Certificate, RequestCounts, certify
from penstock.wire.stats import DurationSketch

_HISTORY = 240
"""Number of recent values of a figure: those of two minutes."""
_WINDOW_NS = 3_000_000_000
"""Time that a rate and each value of a history cover: half a second, the time between snapshots, has too few requests."""


class Percentiles(NamedTuple):
    """In ms."""

    p50: float
    p90: float
    p99: float


class _Moment(NamedTuple):
    at: int
    ended: int
    tokens: float
    sketches: tuple[DurationSketch, DurationSketch, DurationSketch]


class History:
    """The recent values of a figure; None where it has none."""

    def __init__(self) -> None:
        self.values: deque[float | None] = deque(maxlen=_HISTORY)

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


class DashboardState:
    def __init__(self, header: Header) -> None:
        self.header = header
        self.snapshot = Snapshot(at=0, phase=-1)
        self.certificate: Certificate | None = None
        self._moments: deque[_Moment] = deque()
        self._clear()

    def _clear(self) -> None:
        """Reset all figures for the next phase."""
        self._moments.clear()
        self.request_rate, self.token_rate = History(), History()
        self.in_flight, self.waiting = History(), History()
        self.first_content, self.chunk_gap, self.latency = History(), History(), History()
        self.certificate = None

    def add(self, snapshot: Snapshot) -> None:
        if snapshot.phase != self.snapshot.phase:
            self._clear()
        self.snapshot = snapshot
        running = next((phase for phase in snapshot.phases if phase.began and not phase.over), None)
        if running is None or snapshot.note is not None:
            return
        sketches = snapshot.first_content, snapshot.chunk_gap, snapshot.latency
        moment = _Moment(snapshot.at, running.ended, _received_tokens(snapshot, self.header.streaming), sketches)
        moments = self._moments
        while len(moments) > 1 and moments[1].at <= moment.at - _WINDOW_NS:
            moments.popleft()
        before = moments[0] if moments else _Moment(moment.at - round(running.seconds * 1e9), 0, 0.0, _EMPTY)
        moments.append(moment)
        seconds = (moment.at - before.at) / 1e9
        if seconds > 0:
            self.request_rate.values.append((moment.ended - before.ended) / seconds)
            self.token_rate.values.append(max(0.0, moment.tokens - before.tokens) / seconds)
        self.in_flight.values.append(float(snapshot.in_flight))
        self.waiting.values.append(float(snapshot.waiting))
        histories = self.first_content, self.chunk_gap, self.latency
        for history, now, then in zip(histories, sketches, before.sketches, strict=True):
            grown = now.since(then)
            history.values.append(grown.quantile(0.5) / 1e6 if grown.n > 0 else None)
        self.certificate = _certify(self.header, snapshot, running.ended, running.failed)

    def percentiles(self, choose: Callable[[Snapshot], DurationSketch]) -> Percentiles | None:
        """Return percentiles over the phase so far; None without a value."""
        sketch = choose(self.snapshot)
        if not sketch.n:
            return None
        return Percentiles(*(sketch.quantile(q) / 1e6 for q in (0.5, 0.9, 0.99)))


_EMPTY = DurationSketch(), DurationSketch(), DurationSketch()


def _received_tokens(snapshot: Snapshot, streaming: bool) -> float:
    """Return the output tokens that have arrived, with an estimate for the requests in flight: as many per network read as in
    those that ended."""
    if snapshot.tokens_reads:
        return snapshot.reads * snapshot.tokens / snapshot.tokens_reads
    return float(snapshot.reads) if streaming else 0.0


def _certify(header: Header, snapshot: Snapshot, ended: int, failed: int) -> Certificate | None:
    """Return what the client's own counters say so far. The bounds of the figures need the records of the whole run."""
    if not ended or not snapshot.reports:
        return None
    client_errors = sum(count for cause, count in snapshot.errors.items() if cause.owner == "penstock")
    counts = RequestCounts(
        completed=ended,
        succeeded=ended - failed,
        conversations=ended,
        client_errors=client_errors,
        stamps=snapshot.stamps,
        coalesced_stamps=snapshot.coalesced_stamps,
    )
    return certify(snapshot.reports, counts, {}, workers=header.workers, open_loop=header.open_loop, lost=snapshot.lost)
