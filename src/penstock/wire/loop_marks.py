"""Moments at which every watched socket is known to have been empty.

A read that covers several segments carries the arrival time of the newest one. The others arrived earlier, but not before
the last moment at which the socket was known to be empty. The socket's previous read is such a moment, and so is the send of
the request. `LoopMarks` adds a third one that is at most about a millisecond old unless the loop stalls.

uvloop runs callbacks that were passed to `call_soon` right before it polls, and it reads a socket in the same turn in which the
poll finds it readable. So there is a poll after each mark, and at most one mark before each poll:

    mark k-1 ─ poll ─ reads ─ mark k ─ poll ─ reads of this turn

A socket that is read in the last turn was not read in the turn before, so the poll between the two marks found it empty. That
poll came after mark k-1. Mark k itself proves nothing: the socket may have become readable while the turn before was busy.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from penstock.wire.timer import Timer

_INTERVAL_NS = 500_000
"""Time between marks in an idle loop. Each costs some 10 µs, 2 % of a core that has nothing else to do."""


class LoopMarks:
    """Takes a mark every half millisecond while it runs. Needs uvloop: asyncio's own loop polls in another order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = 0
        self._timer: Timer | None = None
        self.known_empty = 0
        """A socket that is read now, and was not read in the loop's last turn, was empty at this time (monotonic ns)."""

    def start(self) -> None:
        if self._timer is None:
            self._timer = Timer(self._loop, self._beat)
            self._timer.at(monotonic_ns())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _beat(self) -> None:
        self._loop.call_soon(self._mark)

    def _mark(self) -> None:
        self.known_empty = self._last
        self._last = now = monotonic_ns()
        if self._timer is not None:
            self._timer.at(now + _INTERVAL_NS)
