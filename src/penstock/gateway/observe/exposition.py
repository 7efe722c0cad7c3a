"""The metrics of all workers as one Prometheus text: for the main process, which answers the scrape.

A worker's file is locked while the worker lives. One that is not has its numbers taken over here and is removed, so that
no counter ever goes back, however often workers end; gauges are taken from the living only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator

import msgspec

from penstock import __version__
from penstock.gateway import owned_file
from penstock.gateway.ledger.mover import MoverState
from penstock.gateway.observe.families import DURATION_EDGES, FAMILIES, TTFT_EDGES
from penstock.gateway.observe.metrics import Counts, Labels, Numbers, Series, resident_bytes
from penstock.gateway.observe.printable import visible

__all__ = ["CONTENT_TYPE", "ConfigState", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "penstock_gateway_"
_PREFIX, _SUFFIX = "metrics-", ".bin"


class ConfigState(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the resource files that the gateway was given."""

    hash: str = ""
    successful: bool = True
    succeeded_at: float = 0.0
    reloads: int = 0
    failures: int = 0


class Exposition:
    def __init__(self, folder: str) -> None:
        """To be made before the first worker starts: what an earlier gateway left is forgotten."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder = folder
        self._decode = msgspec.msgpack.Decoder(Numbers).decode
        self._lock = threading.Lock()
        self._retired = Numbers(series={}, counts={})
        self._living()
        self._retired = Numbers(series={}, counts={})

    def render(self, ledger: MoverState | None = None, config: ConfigState | None = None) -> bytes:
        with self._lock:
            living = self._living()
            sums = Numbers(series={}, counts={})
            for numbers in (self._retired, *living):
                sums.add(numbers)
        counts = sums.counts
        counts.update(_sums(sums.series))
        _add_gauges(counts, living)
        if ledger is not None:
            _add_ledger(counts, ledger)
        if config is not None:
            _add_config(counts, config)
        counts[("build_info", __version__)] = 1
        return "".join(_text(counts, sums.series)).encode()

    def _living(self) -> list[Numbers]:
        living = []
        for name in sorted(os.listdir(self._folder)):
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                numbers = self._read(os.path.join(self._folder, name))
                if numbers is not None:
                    living.append(numbers)
        return living

    def _read(self, path: str) -> Numbers | None:
        """Of a worker that is gone: None, and its numbers are among the retired."""
        while True:
            try:
                file = open(path, "rb")  # noqa: SIM115
            except FileNotFoundError:
                return None
            with file:
                orphan = owned_file.is_orphan(file.fileno())
                if orphan and not _is_still(path, file.fileno()):
                    continue  # its owner wrote a newer one meanwhile
                try:
                    numbers = self._decode(file.read())
                except msgspec.MsgspecError:
                    numbers = Numbers()  # of another version
                if not orphan:
                    return numbers
                self._retired.add(numbers)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                return None


def _is_still(path: str, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _sums(series: dict[Labels, Series]) -> Counts:
    counts: Counts = {}

    def add(number: int, *name: str) -> None:
        if number:
            counts[name] = counts.get(name, 0) + number

    for labels, one in series.items():
        who = (labels.model, labels.provider, labels.key)
        add(one.requests, "requests_total", *msgspec.structs.astuple(labels))
        add(one.input_tokens, "tokens_total", "input", *who)
        add(one.output_tokens, "tokens_total", "output", *who)
        add(one.reasoning_tokens, "reasoning_tokens_total", *who)
        add(one.cached_tokens, "cached_tokens_total", *who)
        add(one.estimated_tokens, "estimated_tokens_total", *who)
    return counts


def _add_gauges(counts: Counts, living: Iterable[Numbers]) -> None:
    living = list(living)
    counts[("workers",)] = len(living)
    counts[("inflight_requests",)] = sum(one.gauges.get("inflight_requests", 0) for one in living)
    counts[("limits_degraded",)] = max((one.gauges.get("limits_degraded", 0) for one in living), default=0)
    counts[("process_resident_memory_bytes", "main")] = resident_bytes()
    for one in living:
        memory = one.gauges.get("process_resident_memory_bytes", 0)
        counts[("process_resident_memory_bytes", f"worker-{one.worker}")] = memory


def _add_ledger(counts: Counts, ledger: MoverState) -> None:
    counts[("ledger_pending_entries",)] = ledger.pending_entries
    counts[("ledger_pending_bytes",)] = ledger.pending_bytes
    counts[("ledger_up",)] = int(not ledger.away)
    counts[("ledger_moved_entries_total",)] = ledger.moved
    counts[("ledger_failures_total",)] = ledger.failures
    counts[("ledger_refused_entries_total",)] = ledger.refused
    counts[("ledger_torn_bytes_total",)] = ledger.torn_bytes


def _add_config(counts: Counts, config: ConfigState) -> None:
    counts[("config_last_reload_successful",)] = int(config.successful)
    counts[("config_last_reload_success_timestamp_seconds",)] = config.succeeded_at
    counts[("config_reloads_total",)] = config.reloads
    counts[("config_reload_failures_total",)] = config.failures
    counts[("config_hash_info", config.hash)] = 1


def _text(counts: Counts, series: dict[Labels, Series]) -> Iterator[str]:
    by_family: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, number in counts.items():
        by_family.setdefault(name[0], []).append((name[1:], number))
    for family, (kind, labels, meaning) in FAMILIES.items():
        yield f"# HELP {PREFIX}{family} {meaning}\n# TYPE {PREFIX}{family} {kind}\n"
        if family == "request_duration_seconds":
            yield from _histogram(family, labels, DURATION_EDGES, _durations(series))
        elif family == "ttft_seconds":
            yield from _histogram(family, labels, TTFT_EDGES, _ttfts(series))
        for values, number in sorted(by_family.get(family, [])):
            yield f"{PREFIX}{family}{_labels(labels, values)} {_number(number)}\n"


Histogram = dict[tuple[str, ...], tuple[list[int], float]]


def _durations(series: dict[Labels, Series]) -> Histogram:
    found: Histogram = {}
    for labels, one in series.items():
        status = f"{labels.status[0]}xx" if labels.status[0].isdecimal() else labels.status
        name = (labels.endpoint, labels.model, labels.provider, status, labels.stream)
        _add(found, name, one.durations, one.duration_s)
    return found


def _ttfts(series: dict[Labels, Series]) -> Histogram:
    found: Histogram = {}
    for labels, one in series.items():
        if labels.stream == "true":
            _add(found, (labels.endpoint, labels.model, labels.provider), one.ttfts, one.ttft_s)
    return found


def _add(found: Histogram, name: tuple[str, ...], buckets: list[int], total: float) -> None:
    have, before = found.get(name, ([0] * len(buckets), 0.0))
    found[name] = ([a + b for a, b in zip(have, buckets, strict=True)], before + total)


def _histogram(family: str, labels: tuple[str, ...], edges: tuple[float, ...], found: Histogram) -> Iterator[str]:
    for values, (buckets, total) in sorted(found.items()):
        if not any(buckets):
            continue
        count = 0
        for edge, bucket in zip([*map(_number, edges), "+Inf"], buckets, strict=True):
            count += bucket
            yield f"{PREFIX}{family}_bucket{_labels((*labels, 'le'), (*values, edge))} {count}\n"
        yield f"{PREFIX}{family}_sum{_labels(labels, values)} {_number(total)}\n"
        yield f"{PREFIX}{family}_count{_labels(labels, values)} {count}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return visible(value).replace("\\", "\\\\").replace('"', '\\"')


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)
