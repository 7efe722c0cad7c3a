"""What is due next: one heap and one alarm for every stream of the server."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from time import monotonic_ns
from typing import Protocol

from penstock.mock.timer import Timer

__all__ = ["Due", "Pacer"]

SLICE_NS = 2_000_000
"""The longest turn of token writes before new requests are read."""


class Due(Protocol):
    def fire(self, now: int) -> int:
        """Do what is due, and return when to be called again; 0 is never."""
        ...


class Pacer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._heap: list[tuple[int, int, Due]] = []
        self._pushed = 0
        self._armed = 0
        self._timer = Timer(loop, self._run)

    def push(self, due: int, item: Due) -> None:
        """Call `item.fire` at `due` on the monotonic clock. There is no way back: an item that ended returns 0."""
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
        # While the turn lasts nothing may arm the timer: it is set once, at its end.
        self._armed = 1
        now = monotonic_ns()
        stop = now + SLICE_NS
        while heap and heap[0][0] <= now < stop:
            _, order, item = heappop(heap)
            again = item.fire(now)
            if again:
                heappush(heap, (again, order, item))
            now = monotonic_ns()
        self._armed = heap[0][0] if heap else 0
        if heap:
            self._timer.at(self._armed)
