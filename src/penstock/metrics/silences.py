"""Times in which requests were in flight and no reply ended: the network was cut, or the server stood still."""

from __future__ import annotations

import numpy as np

from penstock.metrics.statistics import Values
from penstock.plural import counted

__all__ = ["Silences"]

_MIN_REQUESTS = 3
_MIN_NS = 2_000_000_000
_MIN_LATENCIES = 5
"""A silence is at least this many times as long as a request takes on average: replies of a slow server are far apart, too."""
_MAX_LISTED = 3


class _Silence:
    def __init__(self, begin: int, end: int, shortest: float) -> None:
        self.begin = begin
        """End of the last successful request before it."""
        self.end = end
        """End of the first one after it."""
        self.shortest = shortest
        self.requests = 0
        """Requests that were in flight for at least half of it."""
        self.first_start = end

    @property
    def seconds(self) -> tuple[float, float]:
        return max(self.begin, self.first_start) / 1e9, self.end / 1e9

    @property
    def counts(self) -> bool:
        begin, end = self.seconds
        return self.requests >= _MIN_REQUESTS and (end - begin) * 1e9 >= self.shortest


class Silences:
    """Finds silences. Takes the successful requests of a phase nearly in the order of their ends."""

    def __init__(self) -> None:
        self._last = 0
        self._latencies = 0
        self._requests = 0
        self._found: list[_Silence] = []

    def add_batch(self, starts: Values, ends: Values) -> None:
        if not len(ends):
            return
        last = float(self._last) if self._requests else ends[0]
        gaps = ends - np.maximum.accumulate(np.concatenate(([last], ends[:-1])))
        if gaps.max() >= _MIN_NS or (self._found and starts.min() <= self._found[-1].end):
            for start, end in zip(starts, ends, strict=True):
                self.add(int(start), int(end))
            return
        self._last = max(self._last, int(ends.max()))
        self._latencies += int((ends - starts).sum())
        self._requests += len(ends)

    def add(self, start: int, end: int) -> None:
        gap = end - self._last
        if gap >= _MIN_NS and self._requests:
            self._open(end, gap)
        if self._found:
            self._count(start, end)
        self._last = max(self._last, end)
        self._latencies += end - start
        self._requests += 1

    def _open(self, end: int, gap: int) -> None:
        shortest = max(_MIN_NS, _MIN_LATENCIES * self._latencies / self._requests)
        if self._found and not self._found[-1].counts:
            self._found.pop()
        if gap >= shortest:
            self._found.append(_Silence(self._last, end, shortest))

    def _count(self, start: int, end: int) -> None:
        silence = self._found[-1]
        if start <= (silence.begin + silence.end) // 2 and end > silence.begin:
            silence.requests += 1
            silence.end = min(silence.end, end)
            silence.first_start = min(silence.first_start, start)

    def notes(self, start: int) -> list[str]:
        """Return a sentence for each silence; `start` is that of the phase."""
        found = [silence for silence in self._found if silence.counts]
        notes = [_sentence(silence, start / 1e9) for silence in found[:_MAX_LISTED]]
        if (more := len(found) - _MAX_LISTED) > 0:
            notes.append(f"There were {counted(more, 'other time')} without a reply.")
        return notes


def _sentence(silence: _Silence, start_s: float) -> str:
    begin, end = silence.seconds
    return (
        f"No reply ended from {begin - start_s:.1f} s after the start to {end - start_s:.1f} s, while "
        f"{counted(silence.requests, 'request')} waited: the network was cut, or the server stood still. Their latencies "
        "contain this time, and throughput is lower by it."
    )
