"""Arrivals whose rate changes with time: a process of rate 1 on a clock that runs as fast as the rate says.

This module imports NumPy, which takes 0.1 s, so it is imported only by a run that uses it, before its first phase starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from penstock.schedule.arrivals import Arrivals
from penstock.schedule.conversations import Conversations
from penstock.schedule.share import Share

_SECOND = 1_000_000_000
_LAST_NS = float(1 << 62)
"""A rate near zero can give times beyond 64 bits."""
_MIN_RATE = 1e-9
"""A lower rate stands for no arrivals: one in 30 years."""
_FIRST_BLOCK, _BLOCK = 1 << 10, 1 << 16
"""Arrivals that are computed at once: few at first, so that the first request does not wait for those of the others."""


class RatePoint(msgspec.Struct, frozen=True):
    time_s: float
    rate: float


class VaryingRate(msgspec.Struct, frozen=True, tag="varying_rate"):
    """The rate moves linearly from point to point and stays at the last one. Before the first point it is that of the first.

    Arrival number u of the process comes when the integral of the rate reaches u, so the number of arrivals in any interval is
    the area under the rate."""

    process: Arrivals
    """A process with rate 1, whose times are known from the start."""
    points: tuple[RatePoint, ...]

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int]:
        units = self.process.times(share, seed, conversations)
        segments = _Segments(self.points)
        size = _FIRST_BLOCK
        while (block := np.fromiter(islice(units, size), float64)).size:
            times = segments.times(block / _SECOND)
            yield from times.tolist()
            if times.size < block.size:
                return
            size = min(_BLOCK, size * 2)


class _Segments:
    """The straight parts of the rate. In segment k it is `rates[k] + slopes[k] * (t - starts[k])`."""

    def __init__(self, points: tuple[RatePoint, ...]) -> None:
        corners = [RatePoint(0.0, points[0].rate), *(point for point in points if point.time_s > 0)]
        if points[0].time_s <= 0:
            corners[0] = points[0]
        self._starts = np.array([point.time_s for point in corners])
        self._rates = np.array([point.rate for point in corners])
        lengths, changes = np.diff(self._starts), np.diff(self._rates)
        self._slopes = np.append(changes / lengths, 0.0)
        areas = lengths * (self._rates[:-1] + self._rates[1:]) / 2
        self._areas = np.concatenate([[0.0], np.cumsum(areas)])
        """The area under the rate up to the start of each segment."""

    def times(self, units: NDArray[float64]) -> NDArray[int64]:
        """Return when the area under the rate reaches these values, in ns, without those that it never reaches."""
        segment = np.searchsorted(self._areas, units, side="right") - 1
        if self._rates[-1] <= _MIN_RATE:
            segment = segment[segment < len(self._rates) - 1]
        area = units[: segment.size] - self._areas[segment]
        rate = self._rates[segment]
        root = np.sqrt(np.maximum(0.0, rate * rate + 2 * self._slopes[segment] * area))
        after = np.divide(2 * area, rate + root, out=np.zeros_like(area), where=rate + root > 0)
        at = np.minimum((self._starts[segment] + after) * _SECOND, _LAST_NS)
        result: NDArray[int64] = np.rint(at).astype(int64)
        return result
