"""When to send: a scheduler that is told what time it is and what has ended, and does no I/O.

    next(now) ─▶ send     start conversation `number` now; it was due at `at`
                 wait     nothing is due before `at`
                 full     every slot is taken: ask again when something has ended
                 over     nothing more will be sent

Each worker steps through its own share: conversation n belongs to worker n mod workers, and a concurrency of C is split
as evenly as it goes, so no message is exchanged. A conversation that is due but finds no free slot waits, and is sent late;
none is dropped. In a closed loop (no arrivals) a conversation is due the moment its slot became free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

__all__ = ["Scheduler", "Share", "Step", "split"]


class Share(NamedTuple):
    worker: int = 0
    workers: int = 1


class Step(NamedTuple):
    kind: Literal["send", "wait", "full", "over"]
    at: int = 0
    """When it was due."""
    free: int = 0
    """When it was due and had a slot: the sender alone answers for what is later than this."""
    number: int = 0


_FULL = Step("full")
_OVER = Step("over")


def split(total: int, share: Share) -> int:
    """This worker's part of `total` things that are dealt out one by one."""
    return (total - share.worker + share.workers - 1) // share.workers


class Scheduler:
    def __init__(
        self,
        *,
        share: Share,
        slots: int | None,
        arrivals: Iterator[int] | None,
        conversations: int | None = None,
        requests: int | None = None,
        duration_ns: int | None = None,
    ) -> None:
        self._share = share
        self._slots = slots
        self._arrivals = None if arrivals is None else islice(arrivals, share.worker, None, share.workers)
        self._most = conversations
        self._left = None if conversations is None else split(conversations, share)
        self._requests_left = None if requests is None else split(requests, share)
        self._duration = duration_ns
        self._begin = 0
        self._end: int | None = None
        self._number = share.worker
        self._due: int | None = None
        self._free: deque[int] = deque()
        self._freed = 0  # when the slots were last no longer all taken
        self._live = 0
        self._stopped = False

    def begin(self, now: int) -> None:
        """The phase starts now. Slots that were never used count as free from this moment."""
        self._begin = now
        self._end = None if self._duration is None else now + self._duration
        if self._arrivals is not None:
            self._due = now + next(self._arrivals)

    @property
    def began(self) -> int:
        return self._begin

    @property
    def live(self) -> int:
        """Conversations under way."""
        return self._live

    @property
    def ends_at(self) -> int | None:
        """When the duration is over."""
        return self._end

    @property
    def number(self) -> int:
        """The conversation that comes next."""
        return self._number

    def limit(self, conversations: int) -> None:
        """So many conversations there are in all, those already started included."""
        started = (self._number - self._share.worker) // self._share.workers
        most = conversations if self._most is None else min(conversations, self._most)
        self._left = max(0, split(most, self._share) - started)

    def closed(self, now: int) -> bool:
        """Nothing may be sent any more, not even the next turn of a conversation."""
        return self._stopped or self._requests_left == 0 or (self._end is not None and now >= self._end)

    def ready(self, now: int) -> bool:
        """Whether `next` would send."""
        return self._held(now) is None

    def _held(self, now: int) -> Step | None:
        """Why nothing is to be sent now."""
        if self._left == 0 or self.closed(now):
            return _OVER
        due = self._begin if self._due is None else self._due
        if self._end is not None and due >= self._end:
            return _OVER
        if due > now:
            return Step("wait", due)
        if self._slots is not None and self._live >= self._slots:
            return _FULL
        return None

    def next(self, now: int) -> Step:
        held = self._held(now)
        if held is not None:
            return held
        if self._due is None:
            at = free = self._free.popleft() if self._free else self._begin
        else:
            at = self._due
            free = max(at, self._freed)
            assert self._arrivals is not None
            self._due = self._begin + next(self._arrivals)
        number = self._number
        self._number += self._share.workers
        self._live += 1
        if self._left is not None:
            self._left -= 1
        self._count_request()
        return Step("send", at, free, number)

    def another_turn(self, now: int) -> bool:
        """Whether a conversation under way may send its next turn."""
        if self.closed(now):
            return False
        self._count_request()
        return True

    def _count_request(self) -> None:
        if self._requests_left is not None:
            self._requests_left -= 1

    def ended(self, at: int) -> None:
        """A conversation is over; its slot was free from `at` on."""
        if self._live == self._slots:
            self._freed = at
        self._live -= 1
        if self._due is None:
            self._free.append(at)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
