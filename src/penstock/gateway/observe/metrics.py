"""Counting in a worker. Once a second the numbers go to a file in the spool folder; the main process adds the files up.

A request costs 3 µs: one look-up by its labels finds everything that it counts in. Sums over fewer labels are made when
somebody asks (`observe.exposition`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from bisect import bisect_left

import msgspec

from penstock.gateway import owned_file
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.observe.families import (
    ATTEMPT_OUTCOMES,
    DURATION_EDGES,
    LAYERS,
    PHASES,
    TTFT_EDGES,
)
from penstock.gateway.resources.snapshot import Snapshot
from penstock.gateway.routes import ENDPOINTS

__all__ = ["Counts", "Labels", "Metrics", "Numbers", "Series", "resident_bytes"]

UNKNOWN, OTHER = "unknown", "other"
MAX_SERIES = 2000
MAX_COUNTS = 2000
"""Of the smaller families together; a worker's file stays under a megabyte."""
_IDLE_S = 5.0
_TEMPLATES = ENDPOINTS | {path: path for path in ENDPOINTS.values()}
"""An entry may also give the path itself."""


class Labels(msgspec.Struct, array_like=True, frozen=True):
    endpoint: str
    model: str
    provider: str
    status: str
    stream: str
    key: str


class Series(msgspec.Struct, array_like=True):
    """What is counted for one combination of labels."""

    requests: int = 0
    duration_s: float = 0.0
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(DURATION_EDGES) + 1))
    ttft_s: float = 0.0
    ttfts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TTFT_EDGES) + 1))
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0

    def add(self, other: Series) -> None:
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                mine[:] = map(sum, zip(mine, more, strict=True))
            else:
                setattr(self, name, mine + more)


Counts = dict[tuple[str, ...], float]
"""Family and label values -> number."""


class Numbers(msgspec.Struct, kw_only=True):
    worker: int = 0
    series: dict[Labels, Series] = {}
    counts: Counts = {}
    gauges: dict[str, float] = {}

    def add(self, other: Numbers) -> None:
        """The counters; gauges are of the moment and of one process."""
        for labels, series in other.series.items():
            self.series.setdefault(labels, Series()).add(series)
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class Metrics:
    """For one thread. `started` and `ended` bracket every request; `observe` takes the entry it leaves."""

    def __init__(self, folder: str, worker: int) -> None:
        self._path = os.path.join(folder, f"metrics-{worker}-{time.time_ns():020d}-{os.getpid()}.bin")
        self._file = -1
        self._written = 0.0
        self._dirty = True
        self._numbers = Numbers(worker=worker, series={}, counts={})
        self._cells: dict[tuple[object, ...], Series] = {}  # as entries have it -> series; a cache
        self._known: set[str] | None = None
        self.in_flight = 0
        self.limits_degraded = False
        self.totals: dict[str, float] = {}
        """Counters without labels that somebody else in this process keeps."""

    def know(self, snapshot: Snapshot) -> None:
        """Names that may be labels, from now on beside those of earlier snapshots. Before the first call all may."""
        names = {key.name or key.id for key in snapshot.caller_keys.values()}
        names |= {model.name for model in snapshot.models.values()}
        names |= {provider for model in snapshot.models.values() if (provider := model.provider)}
        names |= {provider for key in snapshot.provider_keys.values() if (provider := key.provider)}
        names |= {guardrail.name for guardrail in snapshot.guardrails}
        self._known = names | (self._known or set())
        self._cells.clear()

    def started(self) -> None:
        self.in_flight += 1
        self._dirty = True

    def ended(self) -> None:
        self.in_flight -= 1

    def observe(self, entry: Entry) -> None:
        key = entry.api_key_name or entry.api_key_id
        cell = (entry.route, entry.model, entry.provider, entry.status, entry.stream, key)
        series = self._cells.get(cell)
        if series is None:
            series = self._cells[cell] = self._find(entry, key)
        self._dirty = True
        series.requests += 1
        phases = entry.phases_ms
        if (total := phases.get("total")) is not None:
            seconds = total * 0.001
            series.duration_s += seconds
            series.durations[bisect_left(DURATION_EDGES, seconds)] += 1
        if entry.stream and entry.ttft_ms is not None:
            seconds = entry.ttft_ms * 0.001
            series.ttft_s += seconds
            series.ttfts[bisect_left(TTFT_EDGES, seconds)] += 1
        if entry.usage_source != "none":
            self._tokens(series, entry)
        counts = self._numbers.counts
        for phase, ms in phases.items():
            spent = ("phase_seconds_total", phase)
            if spent in counts:
                counts[spent] += ms * 0.001
            else:
                self._count(("phase_seconds_total", phase if phase in PHASES else OTHER), ms * 0.001)
        for attempt in entry.attempts:
            outcome = attempt.error or "success"
            tried = ("upstream_attempts_total", attempt.model, attempt.kind, outcome)
            if tried in counts:
                counts[tried] += 1
            else:
                outcome = outcome if outcome in ATTEMPT_OUTCOMES else OTHER
                self._count(("upstream_attempts_total", self._name(attempt.model), attempt.kind, outcome))
        if entry.guardrails:
            for hit in entry.guardrails:
                self._count(("guardrail_hits_total", self._name(hit.guardrail), hit.hook, hit.action), hit.count)
        if entry.status >= 400:
            self._refused(entry)

    def tick(self) -> None:
        """To be called about once a second."""
        if self._dirty or time.monotonic() - self._written >= _IDLE_S:
            self.write()

    def write(self) -> None:
        for name, total in self.totals.items():
            self._numbers.counts[(name,)] = total
        self._numbers.gauges = {
            "inflight_requests": self.in_flight,
            "limits_degraded": float(self.limits_degraded),
            "process_resident_memory_bytes": resident_bytes(),
        }
        self._dirty = False
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk: the next second tries again
            before, self._file = self._file, owned_file.create(self._path, msgspec.msgpack.encode(self._numbers))
            if before >= 0:
                os.close(before)

    def close(self) -> None:
        """The counters stay, as they do when the process is killed; the gauges go."""
        self.write()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _tokens(self, series: Series, entry: Entry) -> None:
        series.input_tokens += entry.input_tokens
        series.output_tokens += entry.output_tokens
        series.reasoning_tokens += entry.reasoning_tokens
        series.cached_tokens += entry.cached_tokens
        if entry.usage_source == "estimated":
            series.estimated_tokens += entry.input_tokens + entry.output_tokens

    def _refused(self, entry: Entry) -> None:
        if entry.limited_by is not None:
            layer = entry.limited_by if entry.limited_by in LAYERS else OTHER
            self._count(("ratelimit_rejections_total", layer))
        if entry.status == 499:
            self._count(("client_disconnects_total", _TEMPLATES.get(entry.route, OTHER)))

    def _count(self, name: tuple[str, ...], more: float = 1) -> None:
        counts = self._numbers.counts
        if name not in counts and len(counts) >= MAX_COUNTS:
            name = (name[0], *(OTHER for _ in name[1:]))
        counts[name] = counts.get(name, 0) + more

    def _find(self, entry: Entry, key: str) -> Series:
        if len(self._cells) >= 4 * MAX_SERIES:
            self._cells.clear()
        labels = Labels(
            _TEMPLATES.get(entry.route, OTHER),
            self._name(entry.model),
            self._name(entry.provider),
            str(entry.status) if 100 <= entry.status <= 599 else OTHER,
            "true" if entry.stream else "false",
            self._name(key),
        )
        series = self._numbers.series.get(labels)
        if series is None:
            if len(self._numbers.series) >= MAX_SERIES:
                status = f"{labels.status[0]}xx"
                labels = Labels(labels.endpoint, OTHER, OTHER, status, labels.stream, OTHER)
            series = self._numbers.series.setdefault(labels, Series())
        return series

    def _name(self, text: str) -> str:
        if not text or (self._known is not None and text not in self._known):
            return UNKNOWN
        return text


def resident_bytes() -> int:
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the most there ever was: all that macOS tells cheaply
