"""What the charts of a run need of its requests, in columns and grids: memory does not grow with their number."""

from __future__ import annotations

import heapq
import math
import os
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.metric import Measures
from penstock.metrics.statistics import Column, Values
from penstock.records.record import Record
from penstock.reports.request_detail import request_detail

__all__ = ["GapLengths", "Outcome", "RequestColumns", "Requests", "TokenGrid"]

_ROW = 10
_BUFFERED_ROWS = 512
_BATCH_GAPS, _BATCH_REPLIES = 65_536, 1_024
_SLOWEST = 20
_FAILED_PER_KIND, _FAILED = 3, 20


_NAN = math.nan


class Outcome(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    CANCELLED = 2


class Requests(NamedTuple):
    """All requests of a run, in the order of the log. Times are nanoseconds from the epoch, durations milliseconds."""

    start: Values
    end: Values
    first: Values
    """Time of the first content; NaN without one."""
    ttft: Values
    itl: Values
    latency: Values
    """NaN for requests that did not succeed, as the other metrics."""
    outcome: Values
    phase: Values
    number: Values
    turn: Values


class GapLengths:
    """Counts the gaps between chunks by their length, in logarithmic bins."""

    _PER_DECADE, _DECADES, _LOWEST = 60, 9, 1e-3
    """Bins of length: 60 for each decade (steps of 4 %) from 0.001 ms on."""
    _BINS = _PER_DECADE * _DECADES + 1

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(self._BINS, dtype=np.int64)

    def add(self, gaps: Values) -> None:
        """Add gaps in ms."""
        bins = np.log10(np.maximum(gaps, self._LOWEST) / self._LOWEST) * self._PER_DECADE
        self.counts += np.bincount(np.minimum(bins.astype(np.intp), self._BINS - 1), minlength=self._BINS)

    def edges(self) -> Values:
        """Return the lower edge of each bin, in ms."""
        return self._LOWEST * 10 ** (np.arange(self._BINS) / self._PER_DECADE)


class TokenGrid:
    """Counts output tokens by the time of their arrival, in bins whose width doubles when there are too many."""

    _MOST = 8_192

    def __init__(self) -> None:
        self.width = 10_000_000.0
        self.origin: float | None = None
        self.counts: Values = np.zeros(self._MOST)

    def add(self, times: Values, tokens: Values) -> None:
        earliest, latest = float(times.min()), float(times.max())
        if self.origin is None:
            self.origin = earliest
        while earliest < self.origin or latest >= self.origin + self._MOST * self.width:
            self._widen(left=earliest < self.origin)
        bins = ((times - self.origin) / self.width).astype(np.intp)
        self.counts += np.bincount(np.minimum(bins, self._MOST - 1), tokens, self._MOST)

    def _widen(self, left: bool) -> None:
        assert self.origin is not None
        half = self.counts.reshape(-1, 2).sum(axis=1)
        empty = np.zeros(self._MOST // 2)
        self.counts = np.concatenate((empty, half) if left else (half, empty))
        if left:
            self.origin -= self._MOST * self.width
        self.width *= 2

    def rates(self, edges: Values) -> Values | None:
        """Return the tokens per second between each two of the edges (ns); None if no token was counted."""
        if self.origin is None:
            return None
        own = self.origin + np.arange(self._MOST + 1) * self.width
        total = np.concatenate(((0.0,), np.cumsum(self.counts)))
        rates: Values = np.diff(np.interp(edges, own, total)) / np.diff(edges) * 1e9
        return rates


class RequestColumns:
    """Takes all records of a run."""

    def __init__(self, folder: str) -> None:
        """`folder` holds temporary files for large columns."""
        self._column = Column(os.path.join(folder, "page-requests.f64"))
        self._rows = array("d")
        self.gaps = GapLengths()
        """Those of the profiling phases."""
        self.tokens = TokenGrid()
        self._gap_lists: list[Values] = []
        self._gap_rows: list[tuple[float, float, bool]] = []
        """For each of them: when the first chunk arrived, the tokens of each chunk, and whether it is of a profiling phase."""
        self._buffered = 0
        self._slowest: list[tuple[float, int, dict[str, Any]]] = []
        self._failed: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
        self._whole_replies: list[tuple[float, float]] = []
        self._count = 0
        self._threshold = -1.0
        """Latency of the fastest of the slowest requests."""

    def add(self, record: Record, measures: Measures, profiling: bool) -> None:
        if record.cancelled or record.failure is not None:
            self._add_other(record, measures, profiling)
            return
        get = measures.values.get
        start, latency = record.start, get("request_latency", _NAN)
        first = start + record.stamps[0] if record.streamed and record.stamps else _NAN
        times = get("time_to_first_token", _NAN), get("inter_token_latency", _NAN), latency
        self._rows.extend((start, record.end, first, *times, 0.0, record.phase, record.number, record.turn))
        if len(self._rows) >= _BUFFERED_ROWS * _ROW:
            self._flush_rows()
        length = get("output_sequence_length", 0.0)
        gaps = measures.lists.get("inter_chunk_latency")
        if gaps is not None:
            self._gap_lists.append(gaps)
            self._gap_rows.append((first, length / (len(gaps) + 1), profiling))
            self._buffered += len(gaps)
        elif length:
            self._whole_replies.append((first if record.streamed and record.stamps else record.end, length))
        if self._buffered >= _BATCH_GAPS or len(self._gap_lists) + len(self._whole_replies) >= _BATCH_REPLIES:
            self._flush_gaps()
        if profiling and (latency > self._threshold or len(self._slowest) < _SLOWEST):
            self._keep_slow(latency, record, measures)

    def _add_other(self, record: Record, measures: Measures, profiling: bool) -> None:
        """Add a request that failed or was cancelled. It has no latencies."""
        outcome = Outcome.CANCELLED if record.cancelled else Outcome.FAILURE
        first = record.start + record.stamps[0] if record.streamed and record.stamps else _NAN
        times = _NAN, _NAN, _NAN
        self._rows.extend((record.start, record.end, first, *times, outcome, record.phase, record.number, record.turn))
        if len(self._rows) >= _BUFFERED_ROWS * _ROW:
            self._flush_rows()
        if profiling and outcome is Outcome.FAILURE and record.failure is not None:
            kind = record.failure.type, record.failure.code
            if kind not in self._failed and len(self._failed) >= _FAILED:
                return
            kept = self._failed.setdefault(kind, [])
            if len(kept) < _FAILED_PER_KIND:
                kept.append(request_detail(record, measures.values))

    def _keep_slow(self, latency: float, record: Record, measures: Measures) -> None:
        self._count += 1
        item = latency, -self._count, request_detail(record, measures.values)
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, item)
        else:
            heapq.heapreplace(self._slowest, item)
        self._threshold = self._slowest[0][0]

    def _flush_rows(self) -> None:
        self._column.extend(np.frombuffer(self._rows))
        self._rows = array("d")

    def _flush_gaps(self) -> None:
        if self._whole_replies:
            times, tokens = np.array(self._whole_replies).T
            self.tokens.add(times, tokens)
        if self._gap_lists:
            counts = np.fromiter(map(len, self._gap_lists), dtype=np.intp, count=len(self._gap_lists))
            gaps = np.concatenate(self._gap_lists)
            firsts, shares, profiled = np.array(self._gap_rows).T
            self.gaps.add(gaps[np.repeat(profiled != 0, counts)])
            before = np.cumsum(counts) - counts
            elapsed = np.cumsum(gaps)
            elapsed -= np.repeat(elapsed[before] - gaps[before], counts)
            times = np.repeat(firsts, counts) + elapsed * 1e6
            self.tokens.add(np.concatenate((firsts, times)), np.concatenate((shares, np.repeat(shares, counts))))
        self._gap_lists, self._gap_rows, self._whole_replies, self._buffered = [], [], [], 0

    def finish(self) -> Requests:
        """Return the columns. Add nothing after this call."""
        if self._rows:
            self._flush_rows()
        self._flush_gaps()
        rows = self._column.values().reshape(-1, _ROW)
        return Requests(*(rows[:, n] for n in range(_ROW)))  # views: the rows of a large run are in a file

    def slowest(self) -> list[dict[str, Any]]:
        """Return the slowest requests of the profiling phases, the slowest first."""
        return [detail for _, _, detail in sorted(self._slowest, key=lambda item: (-item[0], -item[1]))]

    def failed(self) -> list[dict[str, Any]]:
        """Return the first failed requests of each kind."""
        return list(self._failed_details())[:_FAILED]

    def _failed_details(self) -> Iterator[dict[str, Any]]:
        for n in range(_FAILED_PER_KIND):
            yield from (kept[n] for kept in self._failed.values() if n < len(kept))
