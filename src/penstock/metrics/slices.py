"""Metrics of the requests that started in each slice of a phase's time (`--slice-duration`).

The first slice begins with the first start, which is known only after the last record. Until then, requests are kept in a
scratch file by the interval of their start, on a grid from the run's epoch with the length of a slice: a slice overlaps two of
them. At the end, one slice after the other is computed, so memory does not grow with the number of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.concurrency import Window
from penstock.metrics.metric import Measures
from penstock.metrics.phase_stats import PhaseStats
from penstock.metrics.statistics import Stats
from penstock.records.record import Record
from penstock.scratch import Scratch, Spool

_BUFFER_BYTES = 8 << 20
_BATCH = 512


class Slice(msgspec.Struct, frozen=True):
    start_ns: int
    end_ns: int
    """In ns from the run's epoch."""
    is_complete: bool
    """False for a last slice that ends with the phase."""
    metrics: dict[str, Stats]


class _Stored(msgspec.Struct, array_like=True):
    record: Record
    values: dict[str, float]
    lists: dict[str, bytes]


class SliceBuilder:
    def __init__(
        self,
        scratch: Scratch,
        length_s: float,
        make_stats: Callable[[], PhaseStats],
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        """`make_stats` returns the empty statistics of a slice. More than `buffer_bytes` of requests go to the file."""
        self._buffer_bytes = buffer_bytes
        self._scratch = scratch
        self._length = round(length_s * 1e9)
        self._make_stats = make_stats
        self._buffers: dict[int, bytearray] = {}
        self._buffered = 0
        self._intervals: dict[int, Spool] = {}

    def add(self, record: Record, measures: Measures) -> None:
        without_texts = msgspec.structs.replace(
            record, outputs=[""] * len(record.outputs), reasonings=[""] * len(record.reasonings), head_outputs=""
        )
        lists = {tag: values.tobytes() for tag, values in measures.lists.items()}
        data = msgspec.msgpack.encode(_Stored(without_texts, measures.values, lists))
        buffer = self._buffers.setdefault(record.start // self._length, bytearray())
        buffer += len(data).to_bytes(4, "little")
        buffer += data
        self._buffered += len(data)
        if self._buffered >= self._buffer_bytes:
            self._write()

    def slices(
        self, window: Window, over_time: Callable[[Sequence[Window]], list[dict[str, Stats]]]
    ) -> Iterator[Slice]:
        """Yield the slices in which requests started. `window` is that of the phase, and `over_time` returns the metrics over
        time for parts of it."""
        self._write()
        begin, end = window
        windows = [(start, min(start + self._length, end)) for start in range(begin, end, self._length)]
        metrics_over_time = over_time(windows)
        for number, stats in self._phase_stats(begin):
            if number < len(windows):
                start, stop = windows[number]
                metrics = stats.metrics((start, stop), metrics_over_time[number])
                yield Slice(start, stop, stop == start + self._length, metrics)

    def _phase_stats(self, begin: int) -> Iterator[tuple[int, PhaseStats]]:
        """Yield the number and the statistics of each slice. At most two are in memory."""
        open_slices: dict[int, PhaseStats] = {}
        for interval in sorted(self._intervals):
            stored = self._read(interval)
            while batch := list(islice(stored, _BATCH)):
                by_slice: dict[int, list[tuple[Record, Measures]]] = {}
                for record, measures in batch:
                    by_slice.setdefault((record.start - begin) // self._length, []).append((record, measures))
                for number, requests in by_slice.items():
                    if number not in open_slices:
                        open_slices[number] = self._make_stats()
                    records, rows = zip(*requests, strict=True)
                    open_slices[number].add_batch(Batch(records), MeasureTable.of(rows))
            complete = ((interval + 1) * self._length - begin) // self._length
            for number in [number for number in sorted(open_slices) if number < complete]:
                yield number, open_slices.pop(number)
        yield from sorted(open_slices.items())

    def merge(self, other: SliceBuilder) -> None:
        self._write()
        for interval, spool in other._intervals.items():
            self._spool(interval).merge(spool)
        for interval, buffer in other._buffers.items():
            self._spool(interval).write(buffer)

    def _spool(self, interval: int) -> Spool:
        return self._intervals.setdefault(interval, Spool(self._scratch))

    def _write(self) -> None:
        for interval, buffer in self._buffers.items():
            self._spool(interval).write(buffer)
        self._buffers, self._buffered = {}, 0

    def _read(self, interval: int) -> Iterator[tuple[Record, Measures]]:
        decode = msgspec.msgpack.Decoder(_Stored).decode
        data = self._intervals[interval].mapped()
        at = 0
        while at < len(data):
            begin = at + 4
            at = begin + int.from_bytes(data[at:begin], "little")
            stored = decode(data[begin:at])
            yield stored.record, Measures(stored.values, {t: np.frombuffer(v) for t, v in stored.lists.items()})
