"""The metrics of one worker. Once a second they are written to a file in the spool folder, which the main process reads.

A request costs 3 µs: one lookup by its labels finds its series. Sums over fewer labels are computed during a scrape
(`observe.exposition`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from bisect import bisect_left

import msgspec

from penstock.gateway.ledger.entry import Entry
from penstock.gateway.observe.families import (
    ATTEMPT_OUTCOMES,
    DURATION_EDGES,
    HISTOGRAMS,
    LAYERS,
    PHASES,
    TTFT_EDGES,
)
from penstock.gateway.resources.snapshot import Snapshot
from penstock.gateway.routes import ENDPOINTS
from penstock.gateway.storage import owned_file

UNKNOWN, OTHER = "unknown", "other"
MAX_SERIES = 2000
MAX_COUNTS = 2000
"""For the families outside `Series` together. Both limits keep a worker's file under 1 MB."""
_IDLE_WRITE_S = 5.0
_ENDPOINT_LABELS = ENDPOINTS | {path: path for path in ENDPOINTS.values()}
"""The route of an entry is a name or a path."""


class Labels(msgspec.Struct, array_like=True, frozen=True):
    """The labels of a series."""

    endpoint: str
    model: str
    provider: str
    status: str
    stream: str
    key: str


class Histogram(msgspec.Struct, array_like=True):
    """Durations in seconds: their number between each two edges, and their sum."""

    buckets: list[int]
    total: float = 0.0

    def observe(self, edges: tuple[float, ...], seconds: float) -> None:
        self.buckets[bisect_left(edges, seconds)] += 1
        self.total += seconds

    def add(self, other: Histogram) -> None:
        self.buckets[:] = map(sum, zip(self.buckets, other.buckets, strict=True))
        self.total += other.total


def _empty(family: str) -> Histogram:
    return msgspec.field(default_factory=lambda: Histogram([0] * (len(HISTOGRAMS[family]) + 1)))


class Series(msgspec.Struct, array_like=True):
    """Counters of one combination of labels."""

    requests: int = 0
    request_duration_seconds: Histogram = _empty("request_duration_seconds")
    ttft_seconds: Histogram = _empty("ttft_seconds")
    upstream_ttfb_seconds: Histogram = _empty("upstream_ttfb_seconds")
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0

    def add(self, other: Series) -> None:
        for name in self.__struct_fields__:
            value, increment = getattr(self, name), getattr(other, name)
            if isinstance(value, Histogram):
                value.add(increment)
            else:
                setattr(self, name, value + increment)


Counts = dict[tuple[str, ...], float]
"""(family, *label values) -> count."""


class MetricValues(msgspec.Struct, kw_only=True):
    """All metrics of one worker, as its file stores them."""

    worker: int = 0
    series: dict[Labels, Series] = {}
    counts: Counts = {}
    gauges: dict[str, float] = {}
    cooldowns_s: dict[str, float] = {}
    """Remaining cooldown by model. All workers share the cooldowns, but a worker knows only the targets that it used."""

    def add(self, other: MetricValues) -> None:
        """Add the counters, but not the gauges, which describe one process at one moment."""
        for labels, series in other.series.items():
            self.series.setdefault(labels, Series()).add(series)
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class Metrics:
    """The metrics of one worker, for use by one thread. Call `started` and `ended` around every request and `observe` with
    its entry."""

    def __init__(self, folder: str, worker: int) -> None:
        self._path = owned_file.new_path(folder, f"metrics-{worker}", ".bin")
        self._file = -1
        self._written_at = 0.0
        self._dirty = True
        self._values = MetricValues(worker=worker, series={}, counts={})
        self._series_cache: dict[tuple[object, ...], Series] = {}  # values as in the entry -> series
        self._phases_ms = dict.fromkeys((*PHASES, OTHER), 0.0)
        self._known_names: set[str] | None = None
        self._collapsed = 0
        self.in_flight = 0
        self.gauges: dict[str, float] = {}
        """Gauges that other objects in this process maintain."""
        self.cooldowns_s: dict[str, float] = {}
        self.loop_lag_s = 0.0
        """Longest delay of the event loop since the last write."""
        self.totals: dict[str, float] = {}
        """Counters without labels that other objects in this process maintain."""

    def add_known_names(self, snapshot: Snapshot) -> None:
        """Allow the names in the snapshot as label values, besides those of earlier snapshots. Before the first call, all
        names are allowed."""
        names = {key.name or key.id for key in snapshot.caller_keys.values()}
        names |= {model.name for model in snapshot.models.values()}
        names |= {provider for model in snapshot.models.values() if (provider := model.provider)}
        names |= {provider for key in snapshot.provider_keys.values() if (provider := key.provider)}
        names |= {guardrail.name for guardrail in snapshot.guardrails}
        self._known_names = names | (self._known_names or set())
        self._series_cache.clear()

    def started(self) -> None:
        self.in_flight += 1
        self._dirty = True

    def ended(self) -> None:
        self.in_flight -= 1

    def observe(self, entry: Entry) -> None:
        key = entry.api_key_name or entry.api_key_id
        cache_key = (entry.route, entry.model, entry.provider, entry.status, entry.stream, key)
        series = self._series_cache.get(cache_key)
        if series is None:
            series = self._series_cache[cache_key] = self._find_series(entry, key)
        self._dirty = True
        series.requests += 1
        phases = entry.phases_ms
        if (total := phases.get("total")) is not None:
            series.request_duration_seconds.observe(DURATION_EDGES, total * 0.001)
        if entry.stream and entry.ttft_ms is not None:
            series.ttft_seconds.observe(TTFT_EDGES, entry.ttft_ms * 0.001)
        if entry.usage_source != "none":
            series.input_tokens += entry.input_tokens
            series.output_tokens += entry.output_tokens
            series.reasoning_tokens += entry.reasoning_tokens
            series.cached_tokens += entry.cached_tokens
            if entry.usage_source in ("estimated", "reserved"):
                series.estimated_tokens += entry.input_tokens + entry.output_tokens
        if entry.attempts and (first_byte := entry.attempts[-1].first_byte_ms) is not None:
            series.upstream_ttfb_seconds.observe(TTFT_EDGES, (first_byte - entry.attempts[-1].started_ms) * 0.001)
        phase_sums = self._phases_ms
        for phase, ms in phases.items():
            phase_sums[phase if phase in phase_sums else OTHER] += ms
        counts = self._values.counts
        for attempt in entry.attempts:
            outcome = attempt.error or "success"
            attempt_key = ("upstream_attempts_total", attempt.model, attempt.kind, outcome)
            if attempt_key in counts:
                counts[attempt_key] += 1
            else:
                outcome = outcome if outcome in ATTEMPT_OUTCOMES else OTHER
                self._count(("upstream_attempts_total", self._known_name(attempt.model), attempt.kind, outcome))
        if entry.guardrails:
            for hit in entry.guardrails:
                self._count(("guardrail_hits_total", self._known_name(hit.guardrail), hit.hook, hit.action), hit.count)
        if entry.status >= 400:
            self._count_refusal(entry)

    def tick(self) -> None:
        """Write the file if anything changed. Call this about once a second."""
        if self._dirty or time.monotonic() - self._written_at >= _IDLE_WRITE_S:
            self.write()

    def write(self) -> None:
        self.totals["collapsed_series_total"] = self._collapsed
        for name, total in self.totals.items():
            self._values.counts[(name,)] = total
        for phase, ms in self._phases_ms.items():
            if ms:
                self._values.counts["phase_seconds_total", phase] = ms * 0.001
        self._values.gauges = self.gauges | {
            "inflight_requests": self.in_flight,
            "loop_lag_seconds": self.loop_lag_s,
            "process_resident_memory_bytes": resident_bytes(),
        }
        self._values.cooldowns_s = self.cooldowns_s
        self.loop_lag_s = 0.0
        self._dirty = False
        self._written_at = time.monotonic()
        with contextlib.suppress(OSError):  # for example a full disk: the next tick retries
            previous, self._file = self._file, owned_file.create(self._path, msgspec.msgpack.encode(self._values))
            if previous >= 0:
                # Frees the replaced file, which waits for the disk: up to 17 ms.
                threading.Thread(target=os.close, args=(previous,)).start()

    def close(self) -> None:
        """Write the file and release it. The main process keeps the counters and drops the gauges."""
        self.write()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _count_refusal(self, entry: Entry) -> None:
        if entry.limited_by is not None:
            layer = entry.limited_by if entry.limited_by in LAYERS else OTHER
            self._count(("ratelimit_rejections_total", layer))
        if entry.status == 499:
            self._count(("client_disconnects_total", _ENDPOINT_LABELS.get(entry.route, OTHER)))

    def _count(self, name: tuple[str, ...], increment: float = 1) -> None:
        counts = self._values.counts
        if name not in counts and len(counts) >= MAX_COUNTS:
            self._collapsed += 1
            name = (name[0], *(OTHER for _ in name[1:]))
        counts[name] = counts.get(name, 0) + increment

    def _find_series(self, entry: Entry, key: str) -> Series:
        if len(self._series_cache) >= 4 * MAX_SERIES:
            self._series_cache.clear()
        labels = Labels(
            _ENDPOINT_LABELS.get(entry.route, OTHER),
            self._known_name(entry.model),
            self._known_name(entry.provider),
            str(entry.status) if 100 <= entry.status <= 599 else OTHER,
            "true" if entry.stream else "false",
            self._known_name(key),
        )
        series = self._values.series.get(labels)
        if series is None:
            if len(self._values.series) >= MAX_SERIES:
                self._collapsed += 1
                labels = Labels(labels.endpoint, OTHER, OTHER, labels.status, labels.stream, OTHER)
            series = self._values.series.setdefault(labels, Series())
        return series

    def _known_name(self, name: str) -> str:
        if not name or (self._known_names is not None and name not in self._known_names):
            return UNKNOWN
        return name


def resident_bytes() -> int:
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS offers only the peak
