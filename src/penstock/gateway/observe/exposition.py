"""The metrics of all workers in the Prometheus text format, rendered by the main process.

A worker locks its metrics file while it runs. When a worker has ended, its counters are added to the retired ones and its
file is removed, so that no counter ever decreases. Gauges come from running workers only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence

import msgspec

from penstock import __version__
from penstock.gateway.ledger.mover import MoverState
from penstock.gateway.observe.families import FAMILIES, HISTOGRAMS
from penstock.gateway.observe.metrics import Counts, Histogram, Labels, MetricValues, Series, resident_bytes
from penstock.gateway.observe.printable import escape_nonprintable
from penstock.gateway.storage import owned_file

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "penstock_gateway_"
_SUMMED_GAUGES = ("inflight_requests", "inspection_queue")


class ConfigState(msgspec.Struct, kw_only=True):
    """The metrics of loading resource files, without the prefix `config_` of their names."""

    last_reload_successful: bool = True
    last_reload_success_timestamp_seconds: float = 0.0
    reloads_total: int = 0
    reload_failures_total: int = 0
    generation: int = 0


class Exposition:
    """Collects and renders the metrics of all workers."""

    def __init__(self, folder: str) -> None:
        """Discard the metrics of an earlier gateway. Create this before the first worker starts."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder = folder
        self._decode = msgspec.msgpack.Decoder(MetricValues).decode
        self._lock = threading.Lock()
        self._retired = MetricValues(series={}, counts={})
        self._read_running()
        self._retired = MetricValues(series={}, counts={})

    def render(
        self,
        ledger: MoverState | None = None,
        config: ConfigState | None = None,
        config_hash: str = "",
        workers: Sequence[tuple[int, int]] = (),
    ) -> bytes:
        """`workers` gives the restarts of each worker, and the generation of the resources that it serves."""
        with self._lock:
            running = self._read_running()
            sums = MetricValues(series={}, counts={})
            for values in (self._retired, *running):
                sums.add(values)
        counts = sums.counts
        counts.update(_sum_series(sums.series))
        _add_gauges(counts, running)
        for prefix, state in (("ledger", ledger), ("config", config)):
            if state is not None:
                counts.update({(f"{prefix}_{name}",): value for name, value in msgspec.structs.asdict(state).items()})
        if config_hash:
            counts[("config_hash_info", config_hash)] = 1
        for number, (restarts, generation) in enumerate(workers):
            counts[("worker_restarts_total", str(number))] = restarts
            counts[("worker_generation", str(number))] = generation
        counts[("build_info", __version__)] = 1
        return "".join(_text(counts, sums.series)).encode()

    def _read_running(self) -> list[MetricValues]:
        running = []
        for path in owned_file.paths(self._folder, "metrics", ".bin"):
            values = self._read(path)
            if values is not None:
                running.append(values)
        return running

    def _read(self, path: str) -> MetricValues | None:
        """Return the values of a running worker. Retire those of an ended worker and return None."""
        while True:
            try:
                file = open(path, "rb")  # noqa: SIM115
            except FileNotFoundError:
                return None
            with file:
                orphan = owned_file.is_orphan(file.fileno())
                if orphan and not _is_current(path, file.fileno()):
                    continue  # its owner has replaced it
                try:
                    values = self._decode(file.read())
                except msgspec.MsgspecError:
                    values = MetricValues()  # written by another version
                if not orphan:
                    return values
                self._retired.add(values)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                return None


def _is_current(path: str, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _sum_series(series: dict[Labels, Series]) -> Counts:
    counts: Counts = {}

    def add(number: int, *name: str) -> None:
        if number:
            counts[name] = counts.get(name, 0) + number

    for labels, values in series.items():
        common = (labels.model, labels.provider, labels.key)
        add(values.requests, "requests_total", *msgspec.structs.astuple(labels))
        add(values.input_tokens, "tokens_total", "input", *common)
        add(values.output_tokens, "tokens_total", "output", *common)
        add(values.reasoning_tokens, "reasoning_tokens_total", *common)
        add(values.cached_tokens, "cached_tokens_total", *common)
        add(values.estimated_tokens, "estimated_tokens_total", *common)
    return counts


def _add_gauges(counts: Counts, running: Sequence[MetricValues]) -> None:
    counts[("workers",)] = len(running)
    for gauge in _SUMMED_GAUGES:
        counts[(gauge,)] = sum(worker.gauges.get(gauge, 0) for worker in running)
    counts[("limits_degraded",)] = max((worker.gauges.get("limits_degraded", 0) for worker in running), default=0)
    counts[("process_resident_memory_bytes", "main")] = resident_bytes()
    for worker in running:
        memory = worker.gauges.get("process_resident_memory_bytes", 0)
        counts[("process_resident_memory_bytes", f"worker-{worker.worker}")] = memory
        for model, seconds in worker.cooldowns_s.items():
            name = ("upstream_cooldown_seconds", model)
            counts[name] = max(seconds, counts.get(name, 0))
        counts[("loop_lag_seconds", str(worker.worker))] = worker.gauges.get("loop_lag_seconds", 0)


def _text(counts: Counts, series: dict[Labels, Series]) -> Iterator[str]:
    by_family: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, number in counts.items():
        by_family.setdefault(name[0], []).append((name[1:], number))
    for family, (kind, labels, meaning) in FAMILIES.items():
        yield f"# HELP {PREFIX}{family} {meaning}\n# TYPE {PREFIX}{family} {kind}\n"
        if kind == "histogram":
            yield from _histogram(family, labels, HISTOGRAMS[family], _sum_histogram(family, labels, series))
        for values, number in sorted(by_family.get(family, [])):
            yield f"{PREFIX}{family}{_labels(labels, values)} {_number(number)}\n"


def _sum_histogram(
    family: str, labels: tuple[str, ...], series: dict[Labels, Series]
) -> dict[tuple[str, ...], Histogram]:
    """Return the durations of all series for each combination of labels."""
    sums: dict[tuple[str, ...], Histogram] = {}
    for one, values in series.items():
        if family != "ttft_seconds" or one.stream == "true":
            histogram: Histogram = getattr(values, family)
            name = tuple(getattr(one, label) for label in labels)
            sums.setdefault(name, Histogram([0] * len(histogram.buckets))).add(histogram)
    return sums


def _histogram(
    family: str, labels: tuple[str, ...], edges: tuple[float, ...], sums: dict[tuple[str, ...], Histogram]
) -> Iterator[str]:
    for values, histogram in sorted(sums.items()):
        if not any(histogram.buckets):
            continue
        count = 0
        for edge, bucket in zip([*map(_number, edges), "+Inf"], histogram.buckets, strict=True):
            count += bucket
            yield f"{PREFIX}{family}_bucket{_labels((*labels, 'le'), (*values, edge))} {count}\n"
        yield f"{PREFIX}{family}_sum{_labels(labels, values)} {_number(histogram.total)}\n"
        yield f"{PREFIX}{family}_count{_labels(labels, values)} {count}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return escape_nonprintable(value).replace("\\", "\\\\").replace('"', '\\"')


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)
