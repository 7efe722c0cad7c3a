"""The scheduler of one phase on one worker: it decides when to send, does no I/O and reads no clock.

    next(now) ─▶ send     start session `number` now; it was due at `intended`
                 wait     nothing is due before `intended`
                 full     all slots are in use: ask again when a session has ended
                 over     nothing more will be sent

Session n belongs to worker n mod workers, and the slots are split as evenly as possible, so workers exchange no messages.
A session that is due while all slots are in use is sent late; none is dropped. In a closed loop (no arrivals) a session is
due when its slot becomes free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

__all__ = ["Decision", "Scheduler", "Share", "split"]


class Share(NamedTuple):
    """One worker's number, and the number of workers."""

    worker: int = 0
    workers: int = 1


class Decision(NamedTuple):
    kind: Literal["send", "wait", "full", "over"]
    intended: int = 0
    """When the session is due."""
    slot_free_at: int = 0
    """When the session was due and had a free slot. Any later delay is the sender's."""
    number: int = 0


_FULL = Decision("full")
_OVER = Decision("over")


def split(total: int, share: Share) -> int:
    """Return this worker's part of `total` items that are assigned round robin."""
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
        """`slots` are this worker's; `arrivals`, `conversations` and `requests` are those of all workers."""
        self._share = share
        self._slots = slots
        self._arrivals = None if arrivals is None else islice(arrivals, share.worker, None, share.workers)
        self._max_conversations = conversations
        self._conversations_left = None if conversations is None else split(conversations, share)
        self._requests_left = None if requests is None else split(requests, share)
        self._duration = duration_ns
        self._began_at = 0
        self._ends_at: int | None = None
        self._number = share.worker
        self._next_arrival: int | None = None
        self._free_slots: deque[int] = deque()
        """Closed loop: when each free slot became free, oldest first."""
        self._not_full_since = 0
        self._active = 0
        self._stopped = False

    def begin(self, now: int) -> None:
        """Start the phase. Slots that were never used count as free from now on."""
        self._began_at = now
        self._ends_at = None if self._duration is None else now + self._duration
        if self._arrivals is not None:
            self._next_arrival = now + next(self._arrivals)

    @property
    def began_at(self) -> int:
        return self._began_at

    @property
    def active(self) -> int:
        """Number of sessions that have started and not ended."""
        return self._active

    @property
    def ends_at(self) -> int | None:
        """When the duration is over."""
        return self._ends_at

    @property
    def number(self) -> int:
        """Number of the next session."""
        return self._number

    def limit(self, conversations: int) -> None:
        """Set the total number of conversations, including those that have started."""
        started = (self._number - self._share.worker) // self._share.workers
        total = conversations if self._max_conversations is None else min(conversations, self._max_conversations)
        self._conversations_left = max(0, split(total, self._share) - started)

    def closed(self, now: int) -> bool:
        """True if nothing more may be sent, not even the next turn of an active session."""
        return self._stopped or self._requests_left == 0 or (self._ends_at is not None and now >= self._ends_at)

    def ready(self, now: int) -> bool:
        """True if `next` would send."""
        return self._blocked(now) is None

    def _blocked(self, now: int) -> Decision | None:
        """Return the decision that keeps a session from being sent now, or None."""
        if self._conversations_left == 0 or self.closed(now):
            return _OVER
        due = self._began_at if self._next_arrival is None else self._next_arrival
        if self._ends_at is not None and due >= self._ends_at:
            return _OVER
        if due > now:
            return Decision("wait", due)
        if self._slots is not None and self._active >= self._slots:
            return _FULL
        return None

    def next(self, now: int) -> Decision:
        blocked = self._blocked(now)
        if blocked is not None:
            return blocked
        if self._next_arrival is None:
            intended = slot_free_at = self._free_slots.popleft() if self._free_slots else self._began_at
        else:
            intended = self._next_arrival
            slot_free_at = max(intended, self._not_full_since)
            assert self._arrivals is not None
            self._next_arrival = self._began_at + next(self._arrivals)
        number = self._number
        self._number += self._share.workers
        self._active += 1
        if self._conversations_left is not None:
            self._conversations_left -= 1
        self._count_request()
        return Decision("send", intended, slot_free_at, number)

    def another_turn(self, now: int) -> bool:
        """Return True and count a request if an active session may send its next turn."""
        if self.closed(now):
            return False
        self._count_request()
        return True

    def _count_request(self) -> None:
        if self._requests_left is not None:
            self._requests_left -= 1

    def ended(self, ended_at: int) -> None:
        """Free the slot of a session that ended at `ended_at`."""
        if self._active == self._slots:
            self._not_full_since = ended_at
        self._active -= 1
        if self._next_arrival is None:
            self._free_slots.append(ended_at)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
