"""The slowest requests of a run beside what the server, the network and the client did at the same time.

The evidence of the slowest requests is compared with that of the fastest tenth: a cause of slowness is higher for the slow
ones. Evidence that is high for both, such as a queue that never empties, delays every request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.telemetry.concepts import CACHE, QUEUE, RUNNING
from penstock.telemetry.scrape import PageHistory
from penstock.telemetry.server_metrics import SOURCE

__all__ = ["Evidence", "Explanation", "SlowRequest", "explain"]

_NEAR_NS = 1_000_000_000
"""A sample counts for a request that it does not fall into if it is at most this far away."""

Verdict = Literal["moved", "high for all", "did not move", "unknown"]


class _Kind(NamedTuple):
    name: str
    header: str
    unit: str
    least: float
    """A difference below this is no cause."""
    always: bool = False
    """True if a value of at least `least` for all requests is reported."""


KINDS = (
    _Kind(QUEUE, "server queue", "requests", 1, always=True),
    _Kind(RUNNING, "requests running on the server", "requests", 1),
    _Kind(CACHE, "cache usage of the server", "%", 10),
    _Kind("rtt_ms", "round trip", "ms", 1),
    _Kind("retransmits", "retransmitted segments", "segments", 0.5),
    _Kind("client_delay_ms", "client delay", "ms", 1),
)


class SlowRequest(msgspec.Struct):
    request_id: str
    at_s: float
    """Start, in seconds after the first request."""
    latency_ms: float
    first_content_ms: float | None
    output_bytes: int
    evidence: dict[str, float]


class Evidence(msgspec.Struct):
    name: str
    header: str
    unit: str
    slow: float | None
    """Mean of the slowest requests; None if it was not observed."""
    fast: float | None
    """Mean of the fastest tenth."""
    verdict: Verdict


class Explanation(msgspec.Struct):
    requests: int
    slowest: list[SlowRequest]
    """In order of time."""
    evidence: list[Evidence]
    slow_ms: float = 0.0
    fast_ms: float = 0.0
    """Mean latency of the slowest requests and of the fastest tenth."""
    observed_server: bool = False
    """True if the run scraped server metrics."""


class _Samples:
    """The concepts of one server over time."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[dict[str, float]] = []

    def during(self, start: int, end: int) -> dict[str, float]:
        """Return the mean of each concept between two times, or its nearest value."""
        low, high = bisect_left(self.times, start), bisect_right(self.times, end)
        if low == high:
            near = [n for n in (low - 1, low) if 0 <= n < len(self.times)]
            near = [n for n in near if min(abs(self.times[n] - start), abs(self.times[n] - end)) <= _NEAR_NS]
            if not near:
                return {}
            low = min(near, key=lambda n: min(abs(self.times[n] - start), abs(self.times[n] - end)))
            high = low + 1
        found = self.values[low:high]
        return {name: sum(v[name] for v in found) / len(found) for name in found[0] if all(name in v for v in found)}


def explain(log: RunLog, count: int = 10) -> Explanation:
    """Explain the slowest requests of the profiling phases; `count` is how many."""
    profiled = {phase.index for phase in log.covered_phases if phase.kind == "profiling"}
    done = [r for r in log.records() if r.phase in profiled and r.failure is None and not r.cancelled]
    if not done:
        return Explanation(0, [], [])
    servers = _server_samples(log)
    done.sort(key=lambda record: record.end - record.start)
    slow, fast = done[-count:], done[: max(1, len(done) // 10)]
    first = min(record.start for record in done)
    evidence = {id(record): _evidence(record, servers) for record in (*slow, *fast)}
    rows = [
        SlowRequest(
            record.request_id,
            (record.start - first) / 1e9,
            (record.end - record.start) / 1e6,
            record.stamps[0] / 1e6 if record.stamps else None,
            sum(map(len, record.outputs)),
            evidence[id(record)],
        )
        for record in sorted(slow, key=lambda record: record.start)
    ]
    excess_ms = _latency(slow) - _latency(fast)
    compared = [
        _compare(kind, [evidence[id(r)] for r in slow], [evidence[id(r)] for r in fast], excess_ms) for kind in KINDS
    ]
    return Explanation(len(done), rows, compared, _latency(slow), _latency(fast), bool(servers))


def _latency(records: Sequence[Record]) -> float:
    return sum(record.end - record.start for record in records) / len(records) / 1e6


def _server_samples(log: RunLog) -> dict[int, _Samples]:
    """Return the samples of each server by its index in the settings' URLs. Metrics of other URLs belong to no server."""
    history = PageHistory()
    by_url: dict[str, _Samples] = {}
    for sample in log.samples():
        if sample.source == SOURCE and history.read(sample) is not None:
            samples = by_url.setdefault(sample.values["url"], _Samples())
            samples.times.append(sample.at)
            samples.values.append(history.concepts(sample.values["url"]))
    urls = log.header.settings.endpoint.urls
    origins = {url.removesuffix("/metrics"): samples for url, samples in by_url.items()}
    found = {n: origins[_origin(url)] for n, url in enumerate(urls) if _origin(url) in origins}
    if not found and len(by_url) == 1:  # one server, whose metrics have another address
        found = dict.fromkeys(range(len(urls)), next(iter(by_url.values())))
    return found


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def _evidence(record: Record, servers: dict[int, _Samples]) -> dict[str, float]:
    values = {"client_delay_ms": max(0, record.start - record.issued - record.connect_ns) / 1e6}
    if record.rtt_us is not None:
        values["rtt_ms"] = record.rtt_us / 1000
        values["retransmits"] = record.retransmits
    samples = servers.get(record.url)
    if samples is not None:
        until = record.start + record.stamps[0] if record.stamps else record.end
        found = samples.during(record.start, until)
        values |= {name: found[name] for name in (QUEUE, RUNNING, CACHE) if name in found}
    return values


def _compare(
    kind: _Kind, slow: Iterable[dict[str, float]], fast: Iterable[dict[str, float]], excess_ms: float
) -> Evidence:
    slow_mean, fast_mean = (_mean([v[kind.name] for v in values if kind.name in v]) for values in (slow, fast))
    verdict: Verdict = "unknown"
    if slow_mean is not None and fast_mean is not None:
        # A delay explains something only if it is a part of the additional latency that one would notice.
        least = max(kind.least, 0.05 * excess_ms) if kind.unit == "ms" else kind.least
        if slow_mean - fast_mean >= least:
            verdict = "moved"
        else:
            verdict = "high for all" if kind.always and min(slow_mean, fast_mean) >= kind.least else "did not move"
    return Evidence(kind.name, kind.header, kind.unit, slow_mean, fast_mean, verdict)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
