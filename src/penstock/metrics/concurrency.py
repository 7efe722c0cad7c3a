"""Compute the number of requests in flight, weighted by time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Column, Stats

__all__ = ["effective_concurrency"]


def effective_concurrency(starts: Column, ends: Column, unit: str) -> Stats | None:
    """Return time-weighted statistics of the concurrency, or None if all requests took no time.

    A percentile is the lowest level that was not exceeded for that share of the time.
    """
    durations = _level_durations(starts, ends)
    total = float(durations.sum())
    if not total:
        return None
    levels = np.arange(len(durations))
    mean = float((levels * durations).sum()) / total
    deviation = math.sqrt(float((np.square(levels - mean) * durations).sum()) / total)
    cumulative = np.cumsum(durations)
    p50, p90, p95, p99 = (float(np.searchsorted(cumulative, q * total)) for q in (0.5, 0.9, 0.95, 0.99))
    occupied = np.flatnonzero(durations)
    low, high = float(occupied[0]), float(occupied[-1])
    return Stats(unit=unit, avg=mean, p50=p50, p90=p90, p95=p95, p99=p99, min=low, max=high, std=deviation)


def _level_durations(starts: Column, ends: Column) -> NDArray[np.float64]:
    """Return the nanoseconds spent with 0, 1, 2, … requests in flight."""
    # An event is its time shifted left by one bit; the low bit is 1 for a start. One in-place sort then puts an end before a
    # start at the same time. The peak is about 40 bytes per request.
    events = np.empty(len(starts) + len(ends), dtype=np.int64)
    events[: len(starts)] = starts.values()
    events[len(starts) :] = ends.values()
    events *= 2
    events[: len(starts)] += 1
    events.sort()
    levels = ((events & 1) * 2 - 1).cumsum(dtype=np.int32)
    # A request that starts and ends in the same nanosecond makes the level -1 there, for no time.
    np.maximum(levels, 0, out=levels)
    events >>= 1
    # astype() for the type checker: NumPy's stubs do not know that weights make the result float.
    return np.bincount(levels[:-1], weights=np.diff(events)).astype(np.float64, copy=False)
