"""The schedule of all writes of the server: one heap and one timer.

Lateness of writes, measured from the log in five runs each, with the server on one of two shared virtual cores and the
client on the other, at 100 tokens a second for each stream:

- 100 streams: 0.05 to 0.06 ms at the median, 0.2 to 0.9 ms at p90, 2.5 to 4.8 ms at p99.
- 500 streams, which take nearly the whole core: 0.08 to 0.11 ms, 0.3 to 1.5 ms, 1.1 to 5.8 ms.

Much of the tail comes from the machine: in alternating runs, the p99 gaps of a server in C were 1.4 to 13.6 ms too long
with 100 streams and 0.1 to 6.3 ms with 500. In the two runs with 500 streams in which those of the C server were 0.1 ms too
long, those of this server were 0.8 and 2.3 ms too long.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from time import monotonic_ns
from typing import Protocol

from penstock.wire.timer import Timer

SLICE_NS = 2_000_000
"""The longest time for token writes before new requests are read."""


class Scheduled(Protocol):
    def on_due(self, now: int) -> int:
        """Do what is due at `now` and return the time of the next call; 0 means never."""
        ...


class Pacer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._heap: list[tuple[int, int, Scheduled]] = []
        self._pushed = 0
        self._armed = 0
        self._timer = Timer(loop, self._run)

    def push(self, due: int, item: Scheduled) -> None:
        """Call `item.on_due` at `due` on the monotonic clock. A call cannot be cancelled."""
        self._pushed += 1
        heappush(self._heap, (due, self._pushed, item))
        if not self._armed or due < self._armed:
            self._armed = due
            self._timer.at(due)

    def close(self) -> None:
        self._heap.clear()
        self._timer.close()

    def _run(self) -> None:
        heap = self._heap
        # A nonzero value keeps `push` from setting the timer, which is set once at the end.
        self._armed = 1
        now = monotonic_ns()
        stop = now + SLICE_NS
        while heap and heap[0][0] <= now < stop:
            _, order, item = heappop(heap)
            next_due = item.on_due(now)
            if next_due:
                heappush(heap, (next_due, order, item))
            now = monotonic_ns()
        self._armed = heap[0][0] if heap else 0
        if heap:
            self._timer.at(self._armed)
