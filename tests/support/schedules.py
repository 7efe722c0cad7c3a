"""Schedulers of phases over a dataset of equal conversations, and a simulation of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from penstock.schedule.arrivals import Constant
from penstock.schedule.limits import Fixed, SlotLimit
from penstock.schedule.phase import Phase
from penstock.schedule.scheduler import OVER, ScheduledSession, Scheduler, Send, Wait
from penstock.schedule.share import Share
from penstock.trees import Tree

MS = 1_000_000
SECOND = 1000 * MS


class Data:
    """Conversations that take the numbers of `turns` in turn. `indexed` of them are known; `size` is None while there may be
    more."""

    def __init__(
        self, turns: int | list[int] = 1, size: int | None = 1000, indexed: int = 1000, delay: int = 0
    ) -> None:
        self._turns = [turns] if isinstance(turns, int) else turns
        self.size = size
        self.indexed = indexed if size is None else size
        self._delay = delay
        self.recorded: dict[tuple[int, int], int] = {}
        self.trees: dict[int, Tree] = {}
        self.asked: list[int] = []

    def has(self, conversation: int) -> bool:
        return conversation < self.indexed

    def pick(self, position: int) -> int | None:
        self.asked.append(position)
        if self.size is not None:
            return position % self.size
        return position if position < self.indexed else None

    def turns(self, conversation: int) -> range:
        return range(self._turns[conversation % len(self._turns)])

    def tree(self, conversation: int) -> Tree | None:
        return self.trees.get(conversation)

    def delay_ns(self, conversation: int, turn: int) -> int:
        del conversation, turn
        return self._delay

    def recorded_ns(self, conversation: int, turn: int) -> int | None:
        return self.recorded.get((conversation, turn))


def make_phase(slots: int | SlotLimit | None = None, **fields: Any) -> Phase:
    if slots is not None:
        fields["slots"] = Fixed(slots) if isinstance(slots, int) else slots
    return Phase(**{"name": "profiling", "kind": "profiling", "seed": 3} | fields)


def scheduler(begin: int = 0, *, data: Data | None = None, share: Share | None = None, **fields: Any) -> Scheduler:
    made = Scheduler(make_phase(**fields), share or Share(), data or Data())
    made.begin(begin)
    return made


def every(ms: float) -> Constant:
    return Constant(1000 / ms)


def sends(made: Scheduler, now: int) -> list[Send]:
    """Return all decisions to send at this moment."""
    decisions = []
    while isinstance(decision := made.next(now), Send):
        decisions.append(decision)
    return decisions


def times(decisions: list[Send]) -> list[tuple[int, int, int]]:
    return [(send.session.number, send.intended, send.slot_free_at) for send in decisions]


def simulate(
    phase: Phase, workers: int, latency_ms: Callable[[int], int], data: Data | None = None
) -> list[tuple[int, int, int]]:
    """Simulate schedulers to their end, check slots and times, and return (number, turn, intended) of each request."""
    sent: list[tuple[int, int, int]] = []
    in_use: list[tuple[int, int]] = []
    for worker in range(workers):
        made = Scheduler(phase, Share(worker, workers), data or Data())
        made.begin(0)
        running: list[tuple[int, int, ScheduledSession]] = []
        now = 0
        while (decision := made.next(now)) is not OVER:
            if isinstance(decision, Send):
                session = decision.session
                assert decision.intended <= decision.slot_free_at <= now
                sent.append((session.number, session.turn, decision.intended))
                end = now + latency_ms(session.number) * MS
                heapq.heappush(running, (end, session.number, session))
                in_use += [(now, 1), (end, -1)]
                continue
            until = decision.until if isinstance(decision, Wait) else None
            assert until is None or until > now
            if running and (until is None or running[0][0] <= until):
                now, _, session = heapq.heappop(running)
                made.ended(session, now)
            else:
                assert until is not None, "the scheduler waits for an event that never comes"
                now = until
    if phase.slots is not None:
        active = 0
        for _, change in sorted(in_use):
            active += change
            assert active <= phase.slots.maximum
    return sorted(sent)
