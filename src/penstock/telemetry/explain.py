"""The slowest requests of a run beside what the server, the network and the client did at the same time.

The evidence of the slowest requests is compared with that of the fastest tenth: a cause of slowness is higher for the slow
ones. Evidence that is high for both, such as a queue that never empties, delays every request.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.telemetry.concepts import CACHE, QUEUE, RUNNING
from penstock.telemetry.network import NETWORK
from penstock.telemetry.scrape import PageHistory
from penstock.telemetry.server_metrics import SOURCE

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
    observed_network: bool = False
    """True if the run measured the round trip to the servers with connections of its own."""


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


class _Means:
    """The means of the evidence of some requests."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, evidence: dict[str, float]) -> None:
        for name, value in evidence.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def of(self, name: str) -> float | None:
        return self._sums[name] / self._counts[name] if name in self._sums else None


class _Latencies:
    """The latencies of all requests, and the slowest requests: what a first pass over the records keeps in memory."""

    def __init__(self, records: Iterable[Record], count: int) -> None:
        self.ns = array("q")
        self.first_start = 0
        slowest: list[tuple[int, int, Record]] = []
        for number, record in enumerate(records):
            latency = record.latency_ns
            self.first_start = min(self.first_start, record.start) if number else record.start
            self.ns.append(latency)
            entry = (latency, number, record)
            if len(slowest) < count:
                heapq.heappush(slowest, entry)
            elif latency >= slowest[0][0]:
                heapq.heapreplace(slowest, entry)
        self.slowest = [record for _, _, record in sorted(slowest)]

    def fastest(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the fastest tenth, at least one, from a second pass over the same records."""
        count = max(1, len(self.ns) // 10)
        limit = int(np.partition(np.asarray(self.ns), count - 1)[count - 1])
        ties = count - sum(latency < limit for latency in self.ns)
        for record in records:
            latency = record.latency_ns
            if latency == limit:
                ties -= 1
            if latency < limit or (latency == limit and ties >= 0):
                yield record


def explain(log: RunLog, count: int = 10) -> Explanation:
    """Explain the slowest requests of the profiling phases; `count` is how many.

    The records are read twice instead of kept: a run may have more than fit into memory."""
    latencies = _Latencies(_succeeded(log), count)
    if not latencies.ns:
        return Explanation(0, [], [])
    servers, networks = _server_samples(log), _network_samples(log)
    slow, fast = _Means(), _Means()
    rows = []
    for record in sorted(latencies.slowest, key=lambda record: record.start):
        evidence = _evidence(record, servers, networks)
        slow.add(evidence)
        rows.append(_row(record, latencies.first_start, evidence))
    slow_ms = _mean_ms(latencies.slowest)
    fast_ns = fast_count = 0
    for record in latencies.fastest(_succeeded(log)):
        fast.add(_evidence(record, servers, networks))
        fast_ns += record.latency_ns
        fast_count += 1
    fast_ms = fast_ns / fast_count / 1e6
    compared = [_compare(kind, slow.of(kind.name), fast.of(kind.name), slow_ms - fast_ms) for kind in KINDS]
    return Explanation(len(latencies.ns), rows, compared, slow_ms, fast_ms, bool(servers), bool(networks))


def _succeeded(log: RunLog) -> Iterator[Record]:
    profiled = {phase.index for phase in log.covered_phases if phase.kind == "profiling"}
    return (r for r in log.records() if r.phase in profiled and r.failure is None and not r.cancelled)


def _row(record: Record, first_start: int, evidence: dict[str, float]) -> SlowRequest:
    return SlowRequest(
        record.request_id,
        (record.start - first_start) / 1e9,
        record.latency_ns / 1e6,
        record.stamps[0] / 1e6 if record.stamps else None,
        sum(map(len, record.outputs)),
        evidence,
    )


def _mean_ms(records: Sequence[Record]) -> float:
    return sum(record.latency_ns for record in records) / len(records) / 1e6


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


def _network_samples(log: RunLog) -> dict[int, _Samples]:
    """Return the round trips to each server by its index in the settings' URLs.

    The smoothed round trip of a request's own connection does not serve here: a server that acknowledges a request with its
    reply makes its own time part of it."""
    by_url: dict[str, _Samples] = {}
    for sample in log.samples():
        if sample.source == NETWORK and "rtt_ns" in sample.values:
            samples = by_url.setdefault(_origin(sample.values["url"]), _Samples())
            samples.times.append(sample.at)
            samples.values.append({"rtt_ms": sample.values["rtt_ns"] / 1e6})
    urls = log.header.settings.endpoint.urls
    return {n: by_url[_origin(url)] for n, url in enumerate(urls) if _origin(url) in by_url}


def _evidence(record: Record, servers: dict[int, _Samples], networks: dict[int, _Samples]) -> dict[str, float]:
    values = {"client_delay_ms": max(0, record.start - record.issued - record.connect_ns) / 1e6}
    if record.rtt_us is not None:  # the kernel knows the connection
        values["retransmits"] = record.retransmits
    until = record.start + record.stamps[0] if record.stamps else record.end
    for samples in (servers.get(record.url), networks.get(record.url)):
        if samples is not None:
            found = samples.during(record.start, until)
            values |= {name: found[name] for name in (QUEUE, RUNNING, CACHE, "rtt_ms") if name in found}
    return values


def _compare(kind: _Kind, slow: float | None, fast: float | None, excess_ms: float) -> Evidence:
    """Judge the means of the slowest and of the fastest requests."""
    verdict: Verdict = "unknown"
    if slow is not None and fast is not None:
        # A delay is a cause only if it is at least 5 % of the additional latency.
        least = max(kind.least, 0.05 * excess_ms) if kind.unit == "ms" else kind.least
        if slow - fast >= least:
            verdict = "moved"
        else:
            verdict = "high for all" if kind.always and min(slow, fast) >= kind.least else "did not move"
    return Evidence(kind.name, kind.header, kind.unit, slow, fast, verdict)
