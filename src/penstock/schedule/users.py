"""Users that each send a turn in a fixed interval, and are replaced by new users when their conversation is over.

With U users and a rate of R, place u of U sends at u / R, (u + U) / R, (u + 2 U) / R, … So requests are due at n / R for
n = 0, 1, 2, …, and each user sends one every U / R. A conversation keeps its place for as many of these times as it has turns.
The next user takes the place at the time after them, whether or not the last reply has ended.

The load starts as if it had run before: the user of place 0 has just been replaced, and the others are in the middle of their
conversations, nearer to the end in places with lower numbers. They send only as many turns as are left to them.

A load that is resumed goes on at the next of these times. The conversations that begin again take the first places, and new
users follow.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import chain, count
from typing import NamedTuple

import msgspec

from penstock.schedule.conversations import Conversations
from penstock.schedule.share import Share, split

_SECOND = 1_000_000_000


class UserStart(NamedTuple):
    """The start of a user's conversation."""

    at: int
    """In ns from the start of the phase."""
    number: int
    """Number of the session, over all workers."""
    turns: int
    """How many turns of the conversation are sent."""


class UserArrivals(msgspec.Struct, frozen=True, tag="users"):
    """The conversations of `users` places that together send `rate` requests per second."""

    users: int
    rate: float
    after_ns: int = 0
    """How much of the load is over, if it is resumed."""
    unfinished: tuple[int, ...] = ()
    """Numbers of the sessions that begin again."""
    next_number: int = 0
    """Number of the first session after them."""

    @property
    def _first(self) -> int:
        """Number of the first arrival."""
        return math.ceil(self.after_ns * self.rate / _SECOND)

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        del seed
        for start in self.starts(share, conversations):
            yield None if start is None else start.at

    def starts(
        self, share: Share, conversations: Conversations, first: int = 0, copies: int = 1
    ) -> Iterator[UserStart | None]:
        """Yield the sessions of this worker in the order of their times; None if the next one is not indexed yet.

        The conversation of session n is at position `first + n // copies`. Place u belongs to worker u mod workers. Every
        worker computes all sessions, because the earlier ones determine the time and the conversation of the next.
        """
        if share.worker >= self.users:
            return
        places = [(arrival, arrival % self.users) for arrival in range(self._first, self._first + self.users)]
        """Heap of (number of the arrival at which the place becomes free, place)."""
        for number in chain(self.unfinished, count(self.next_number)):
            while (conversation := conversations.pick(first + number // copies)) is None:
                yield None
            arrival, place = places[0]
            turns = self.turns_of(number, len(conversations.turns(conversation)))
            heapq.heapreplace(places, (arrival + turns * self.users, place))
            if place % share.workers == share.worker:
                yield UserStart(round(arrival * _SECOND / self.rate) - self.after_ns, number, turns)

    def turns_of(self, number: int, turns: int) -> int:
        """Return how many turns session `number` sends; `turns` is how many its conversation has."""
        return -(-turns * number // self.users) if 0 < number < self.users else turns

    def requests_of(self, share: Share, requests: int) -> int:
        """Return how many of the first `requests` requests belong to this worker."""
        rounds, rest = divmod(requests, self.users)
        places = ((self._first + number) % self.users for number in range(rest))
        return rounds * split(self.users, share) + sum(place % share.workers == share.worker for place in places)
