"""Arrivals whose rate changes with time: a process of rate 1 on a clock that runs as fast as the rate says."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from penstock.schedule.arrivals import Arrivals
from penstock.schedule.conversations import Conversations
from penstock.schedule.share import Share

__all__ = ["RatePoint", "VaryingRate"]

_SECOND = 1_000_000_000
_MIN_RATE = 1e-9
"""A lower rate stands for no arrivals: one in 30 years."""


class RatePoint(msgspec.Struct, frozen=True):
    time_s: float
    rate: float


class VaryingRate(msgspec.Struct, frozen=True, tag="varying_rate"):
    """The rate moves linearly from point to point and stays at the last one. Before the first point it is that of the first.

    Arrival number u of the process comes when the integral of the rate reaches u, so the number of arrivals in any interval is
    the area under the rate."""

    process: Arrivals
    """A process with rate 1."""
    points: tuple[RatePoint, ...]

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        starts, areas = self._areas()
        for time in self.process.times(share, seed, conversations):
            if time is None:
                yield None
                continue
            units = time / _SECOND
            segment = bisect_right(areas, units) - 1
            after = self._time_for(segment, starts, units - areas[segment])
            if after is None:
                return
            yield round((starts[segment] + after) * _SECOND)

    def _areas(self) -> tuple[list[float], list[float]]:
        """Return the start of each segment, and the area under the rate up to it."""
        starts, areas = [0.0], [0.0]
        before = RatePoint(0.0, self.points[0].rate)
        for point in self.points:
            if point.time_s > before.time_s:
                areas.append(areas[-1] + (point.time_s - before.time_s) * (point.rate + before.rate) / 2)
                starts.append(point.time_s)
            before = point
        return starts, areas

    def _time_for(self, segment: int, starts: list[float], area: float) -> float | None:
        """Return how long after the start of a segment the area under the rate is reached; None if it never is."""
        start = starts[segment]
        rate = self._rate_at(start)
        if segment + 1 == len(starts):
            return area / rate if rate > _MIN_RATE else None
        slope = (self._rate_at(starts[segment + 1]) - rate) / (starts[segment + 1] - start)
        root = math.sqrt(max(0.0, rate * rate + 2 * slope * area))
        return 2 * area / (rate + root) if rate + root > 0 else 0.0

    def _rate_at(self, time_s: float) -> float:
        """Return the rate at a point, or before the first one."""
        return next((point.rate for point in reversed(self.points) if point.time_s <= time_s), self.points[0].rate)
