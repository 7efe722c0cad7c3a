"""The limit on the number of requests that are processed at a time, and the queue in front of it.

A server has one process and one event loop, so the limit holds for all of its connections. A slot is free from the moment
at which the last byte of a reply was due, even if the write was late: late writes do not lower the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic_ns

from penstock.mock_server.reply import Reply
from penstock.mock_server.request import MockRequest, time_since


class Slots:
    def __init__(self, count: int, start: Callable[[MockRequest, Reply], None]) -> None:
        """Create `count` free slots. `start` is called with each request that gets one, in the order of arrival."""
        self._free_since = [0] * count
        """The heap of the monotonic times at which the free slots became free."""
        self._waiting: OrderedDict[MockRequest, Reply] = OrderedDict()
        self._start = start
        self._starting = False
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, request: MockRequest, reply: Reply) -> None:
        """Start a request now, or when a slot becomes free."""
        now, waited = time_since(request.arrived_ns)
        request.base_ns = now - waited
        self._waiting[request] = reply
        self._start_waiting()

    def leave(self, request: MockRequest) -> None:
        """Free the slot of a request that has ended, or remove the request from the queue."""
        if request.has_slot:
            request.has_slot = False
            heappush(self._free_since, request.end_due_ns or monotonic_ns())
            self._start_waiting()
        elif self._waiting.pop(request, None) is not None:
            request.queue_ns = monotonic_ns() - request.base_ns

    def close(self) -> None:
        """Start no further requests."""
        self._closed = True

    def _start_waiting(self) -> None:
        # A request that ends while it is started frees its slot, and this loop starts the next one, without recursion.
        if self._starting or self._closed:
            return
        self._starting = True
        while self._waiting and self._free_since:
            request, reply = self._waiting.popitem(last=False)
            arrived = request.base_ns
            request.base_ns = max(arrived, heappop(self._free_since))
            request.queue_ns = request.base_ns - arrived
            request.has_slot = True
            self._start(request, reply)
        self._starting = False
