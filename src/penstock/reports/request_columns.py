"""What the charts of a run need of its requests, in columns and grids: memory does not grow with their number."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.statistics import Column, Values
from penstock.metrics.step_grid import StepGrid
from penstock.reports.request_detail import request_detail
from penstock.scratch import Scratch

_ROW = 10
_SLOWEST = 20
_FAILED_PER_KIND, _FAILED = 3, 20


class RequestEnd(IntEnum):
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


class RequestColumns:
    """Takes all records of a run."""

    def __init__(self, scratch: Scratch) -> None:
        self._column = Column(scratch)
        self.gaps = GapLengths()
        """Those of the profiling phases."""
        self.tokens = StepGrid(1)
        """The number of output tokens that have arrived, over time."""
        self._slowest: list[tuple[float, int, dict[str, Any]]] = []
        self._failed: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
        self._count = 0
        self._threshold = -1.0
        """Latency of the fastest of the slowest requests."""

    def add(self, batch: Batch, table: MeasureTable, profiling: bool) -> None:
        outcome = np.where(
            batch.cancelled, RequestEnd.CANCELLED, np.where(batch.failed, RequestEnd.FAILURE, RequestEnd.SUCCESS)
        )
        firsts, latency = batch.start + batch.first, table.get("request_latency")
        columns = [batch.start, batch.end, firsts, table.get("time_to_first_token"), table.get("inter_token_latency")]
        columns += [latency, outcome, batch.get("phase"), batch.get("number"), batch.turn]
        self._column.extend(np.stack(columns, axis=1))
        self._add_tokens(batch, table, firsts)
        if profiling:
            gaps = table.lists.get("inter_chunk_latency")
            if gaps is not None:
                self.gaps.add(gaps.values)
            self._keep_failed(batch, table)
            self._keep_slow(batch, table, latency)

    def _add_tokens(self, batch: Batch, table: MeasureTable, firsts: Values) -> None:
        length = table.get("output_sequence_length")
        gaps = table.lists.get("inter_chunk_latency")
        counts = np.zeros(batch.size, np.intp) if gaps is None else gaps.counts
        whole = (counts == 0) & (length > 0)
        if whole.any():
            self.tokens.add(np.where(batch.has_stamps, firsts, batch.end)[whole], {0: length[whole]})
        if gaps is None:
            return
        streamed = counts > 0
        firsts, counts, lengths = firsts[streamed], counts[streamed], np.nan_to_num(length[streamed])
        shares = lengths / (counts + 1)
        before = np.cumsum(counts) - counts
        elapsed = np.cumsum(gaps.values)
        elapsed -= np.repeat(elapsed[before] - gaps.values[before], counts)
        times = np.repeat(firsts, counts) + elapsed * 1e6
        self.tokens.add(np.concatenate((firsts, times)), {0: np.concatenate((shares, np.repeat(shares, counts)))})

    def _keep_failed(self, batch: Batch, table: MeasureTable) -> None:
        for index in np.flatnonzero(batch.failed):
            record = batch.records[index]
            assert record.failure is not None
            kind = record.failure.type, record.failure.code
            if kind not in self._failed and len(self._failed) >= _FAILED:
                continue
            kept = self._failed.setdefault(kind, [])
            if len(kept) < _FAILED_PER_KIND:
                kept.append(request_detail(record, table.row(index).values))

    def _keep_slow(self, batch: Batch, table: MeasureTable, latency: Values) -> None:
        slower = np.flatnonzero(latency > self._threshold)
        if len(slower) > _SLOWEST:
            slower = np.sort(slower[np.argsort(-latency[slower], kind="stable")[:_SLOWEST]])
        for index in slower:
            self._count += 1
            item = float(latency[index]), -self._count, request_detail(batch.records[index], table.row(index).values)
            if len(self._slowest) < _SLOWEST:
                heapq.heappush(self._slowest, item)
            elif item[0] > self._slowest[0][0]:
                heapq.heapreplace(self._slowest, item)
        if len(self._slowest) == _SLOWEST:
            self._threshold = self._slowest[0][0]

    def merge(self, other: RequestColumns) -> None:
        """Take over the records of another object, which come after the own ones."""
        self._column.merge(other._column)
        self.gaps.counts += other.gaps.counts
        self.tokens.merge(other.tokens)
        later = [(latency, number - self._count, detail) for latency, number, detail in other._slowest]
        self._slowest = heapq.nlargest(_SLOWEST, self._slowest + later, key=lambda item: item[:2])
        self._count += other._count
        for kind, details in other._failed.items():
            if kind in self._failed or len(self._failed) < _FAILED:
                kept = self._failed.setdefault(kind, [])
                kept += details[: _FAILED_PER_KIND - len(kept)]

    def finish(self) -> Requests:
        """Return the columns. Add nothing after this call."""
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
