"""Gaps between chunks by the position of the token after the gap, over all requests of a phase.

Gaps are counted in bins of 2 %, so memory does not grow with their number, and percentiles are exact to 1 %.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.metrics.metric import Measures
from penstock.metrics.statistics import Values
from penstock.records.record import Record

__all__ = ["GapProfile", "GapProfileBuilder", "PositionGaps"]

_BATCH = 1 << 17
_BATCH_REPLIES = 2_048
"""The arrays of short replies take more memory than their gaps."""
_STEP = math.log(1.02)
_LEAST_MS = 1e-3
_BINS = 1100
"""From 1 µs to 40 minutes."""


def _edges() -> NDArray[np.int64]:
    """Return where ranges of positions begin: each of the first 8, then four for each doubling."""
    edges = list(range(1, 9))
    while edges[-1] < 1 << 20:
        edges.append(math.ceil(edges[-1] * 2**0.25))
    return np.array(edges)


_EDGES = _edges()


class PositionGaps(msgspec.Struct, frozen=True):
    """The gaps before the tokens at a range of positions. Position 1 is the first token after the first stamp."""

    first: int
    last: int
    count: int
    avg: float
    p50: float
    p90: float
    p99: float


class GapProfile(msgspec.Struct, frozen=True):
    unit: str
    inexact_gaps: int
    """Gaps that are left out, because one of their stamps covers several network segments."""
    positions: list[PositionGaps]


class GapProfileBuilder:
    def __init__(self) -> None:
        self._counts = np.zeros((len(_EDGES), _BINS), np.int64)
        self._sums = np.zeros(len(_EDGES))
        self._gaps: list[Values] = []
        self._positions: list[NDArray[np.int64]] = []
        self._buffered = 0
        self._inexact = 0

    def add(self, record: Record, measures: Measures) -> None:
        gaps = measures.lists.get("inter_chunk_latency")
        if gaps is None:
            return
        positions = _positions(record, len(gaps))
        if record.coalesced:
            exact = np.ones(len(gaps), np.bool_)
            indexes = np.array(record.coalesced)
            exact[indexes[indexes < len(gaps)]] = False
            exact[indexes[indexes > 0] - 1] = False
            self._inexact += len(gaps) - int(exact.sum())
            gaps, positions = gaps[exact], positions[exact]
        self._gaps.append(gaps)
        self._positions.append(positions)
        self._buffered += len(gaps)
        if self._buffered >= _BATCH or len(self._gaps) >= _BATCH_REPLIES:
            self._flush()

    def result(self) -> GapProfile | None:
        """Return the profile; None if there were no gaps."""
        self._flush()
        found = [
            _summarise(int(_EDGES[row]), int(_EDGES[row + 1]) - 1, counts, self._sums[row])
            for row, counts in enumerate(self._counts[:-1])
            if counts.any()
        ]
        return GapProfile("ms", self._inexact, found) if found or self._inexact else None

    def _flush(self) -> None:
        if not self._buffered:
            return
        gaps, positions = np.concatenate(self._gaps), np.concatenate(self._positions)
        rows = np.clip(np.searchsorted(_EDGES, positions, side="right") - 1, 0, len(_EDGES) - 2)
        bins = np.log(np.maximum(gaps, _LEAST_MS) / _LEAST_MS) / _STEP
        cells = rows * _BINS + np.minimum(bins.astype(np.int64), _BINS - 1)
        self._counts += np.bincount(cells, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(rows, weights=gaps, minlength=len(_EDGES))
        self._gaps, self._positions, self._buffered = [], [], 0


def _positions(record: Record, gaps: int) -> NDArray[np.int64]:
    """Return the number of pieces of content before each stamp but the first, without those of the first stamp, plus 1."""
    if len(record.pieces) == sum(record.pieces):
        return np.arange(1, gaps + 1)
    before = np.cumsum(np.array(record.pieces, np.int64))[:-1]
    positions: NDArray[np.int64] = before - record.pieces[0] + 1
    return positions


def _summarise(first: int, last: int, counts: NDArray[np.int64], total: float) -> PositionGaps:
    cumulative = np.cumsum(counts)
    count = int(cumulative[-1])
    p50, p90, p99 = (
        _LEAST_MS * math.exp((int(np.searchsorted(cumulative, share * count)) + 0.5) * _STEP)
        for share in (0.5, 0.9, 0.99)
    )
    return PositionGaps(first, last, count, float(total) / count, p50, p90, p99)
