"""Gaps between chunks by the position of the token after the gap, over all requests of a phase.

Gaps are counted in bins of 2 %, so memory does not grow with their number, and percentiles are exact to 1 %.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.metrics.batch import Batch, MeasureTable

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
        self._inexact = 0

    def add(self, batch: Batch, table: MeasureTable) -> None:
        if "inter_chunk_latency" not in table.lists:
            return
        chosen = np.repeat(table.lists["inter_chunk_latency"].counts > 0, batch.gap_counts)
        if (inexact := batch.inexact_gaps) is not None:
            self._inexact += int((inexact & chosen).sum())
            chosen &= ~inexact
        gaps, positions = batch.gaps, _positions(batch)
        if not chosen.all():
            gaps, positions = gaps[chosen], positions[chosen]
        rows = np.clip(np.searchsorted(_EDGES, positions, side="right") - 1, 0, len(_EDGES) - 2)
        bins = np.log(np.maximum(gaps, _LEAST_MS) / _LEAST_MS) / _STEP
        cells = rows * _BINS + np.minimum(bins.astype(np.int64), _BINS - 1)
        if len(cells):
            # Short replies fill the first rows only.
            used = int(rows.max()) + 1
            self._counts[:used] += np.bincount(cells, minlength=used * _BINS).reshape(used, _BINS)
            self._sums += np.bincount(rows, weights=gaps, minlength=len(_EDGES))

    def merge(self, other: GapProfileBuilder) -> None:
        self._counts += other._counts
        self._sums += other._sums
        self._inexact += other._inexact

    def result(self) -> GapProfile | None:
        """Return the profile; None if there were no gaps."""
        found = [
            _summarise(int(_EDGES[row]), int(_EDGES[row + 1]) - 1, counts, self._sums[row])
            for row, counts in enumerate(self._counts[:-1])
            if counts.any()
        ]
        return GapProfile("ms", self._inexact, found) if found or self._inexact else None


def _positions(batch: Batch) -> NDArray[np.int64]:
    """Return for each gap the pieces of content before its end, without those of the first stamp, plus 1."""
    begins = np.cumsum(batch.gap_counts) - batch.gap_counts
    positions: NDArray[np.int64] = np.arange(1, len(batch.gaps) + 1) - np.repeat(begins, batch.gap_counts)
    if batch.stamp_pieces is not None:
        before = np.cumsum(batch.stamp_pieces)
        # The pieces of a request up to the stamp before the gap's end, without those of its first stamp.
        first = np.repeat(before[np.minimum(batch.begins, len(before) - 1)], batch.gap_counts)
        starts = np.repeat(batch.begins, batch.gap_counts) + positions - 1
        positions = (before[starts] - first).astype(np.int64) + 1
    return positions


def _summarise(first: int, last: int, counts: NDArray[np.int64], total: float) -> PositionGaps:
    cumulative = np.cumsum(counts)
    count = int(cumulative[-1])
    p50, p90, p99 = (
        _LEAST_MS * math.exp((int(np.searchsorted(cumulative, share * count)) + 0.5) * _STEP)
        for share in (0.5, 0.9, 0.99)
    )
    return PositionGaps(first, last, count, float(total) / count, p50, p90, p99)
