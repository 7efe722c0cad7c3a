"""The limiter that counts in a table on this machine."""

from __future__ import annotations

import time
from typing import Final

from penstock.gateway.limits.base_limiter import BaseLimiter
from penstock.gateway.limits.counter_table import RING, SharedTable
from penstock.gateway.limits.limit_plan import Plan, Slots, Window
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.limits.windows import TICKS, remaining, reset_us, wait_us
from penstock.gateway.refusal import Refusal

__all__ = ["LocalLimiter"]

_REAP_EVERY_S: Final = 1.0

_Found = tuple[int, int, int, int, int]
"""Of a window: where its record is, its tick, the µs since that began, what is to be charged, and the room that is left
then (limit - used - amount) times the window's width."""


class LocalLimiter(BaseLimiter):
    """Exact across all processes that are attached to the table."""

    degraded = False
    failures = 0

    def __init__(self, table: SharedTable) -> None:
        super().__init__()
        self._table = table
        self._reaped = 0.0
        self._closed = False
        table.claim_row()

    @property
    def evicted(self) -> int:
        return self._table.evicted

    async def _admit(self, plan: Plan, tokens: int, now: float) -> Reservation:
        return self.admit_plan(plan, tokens, now)

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        self.settle_now(reservation, tokens, now)

    async def close(self) -> None:
        """What is settled later is settled by this: a closed table holds nothing for its process."""
        if not self._closed:
            self._closed = True
            self._table.close()

    def admit_plan(self, plan: Plan, tokens: int, now: float) -> Reservation:
        """Everything is looked at before anything is counted, so a refusal leaves no trace.

        4 µs for one window and 2 more for each further one, headers included; 0.7 of that is the lock.
        """
        now_us = int(now * 1_000_000)
        table = self._table
        words = table.words
        charges: tuple[tuple[Window, int, int], ...] = ()
        refusal: Refusal | None = None
        free: list[int] = []
        healed = False
        table.lock()
        try:
            found, fits = self._look(plan, tokens, now_us)
            if plan.slots:
                places = self._places(plan, now_us)
                free = self._free(places)
                if min(free) <= 0 and self._reap():
                    free = self._free(places)
            if not fits or (free and min(free) <= 0):
                healed = any(table.heal(at) for at, *_ in found)
                if not healed:
                    refusal = self._refusal(plan, found, free)
            else:
                for at, tick, _, amount, _ in found:
                    words[at + 3] += amount
                    words[at + RING + tick % TICKS] += amount
                if free:
                    for _, at in places:
                        if at >= 0:
                            table.occupy(at, 1)
        finally:
            table.unlock()
        if refusal is not None:
            raise refusal
        if healed:
            return self.admit_plan(plan, tokens, now)
        if plan.charged:
            charges = tuple((plan.windows[index], found[index][1], found[index][3]) for index in plan.charged)
        states = [
            (found[index][4] // plan.windows[index].width, TICKS * plan.windows[index].width - found[index][2])
            for index in plan.shown
        ]
        return Reservation(plan.headers(states, [left - 1 for left in free]), charges, plan.slots, self)

    def settle_now(self, reservation: Reservation, tokens: int, now: float) -> None:
        if reservation.settled or self._closed:
            return
        reservation.settled = True
        now_us = int(now * 1_000_000)
        table = self._table
        words = table.words
        table.lock()
        try:
            for window, tick, reserved in reservation.charges:
                assert isinstance(window, Window)
                change = tokens - reserved
                if not change:
                    continue
                wanted = now_us // window.width
                at = window.at
                if at < 0 or words[at] != window.low or words[at + 1] != window.high:
                    at = window.at = table.find_window(window.low, window.high, window.width, wanted)
                current = table.advance(at, wanted)
                # what was reserved too much goes back where it was taken, if that still counts at all;
                # what came on top is used now
                if change < 0 and not current - TICKS < tick <= current:
                    continue
                slot = at + RING + (tick if change < 0 else current) % TICKS
                change = max(change, -words[slot])
                words[at + 3] = max(0, words[at + 3] + change)
                words[slot] += change
            for slots in reservation.slots:
                assert isinstance(slots, Slots)
                at = table.find_slots(slots.low, slots.high, now_us)
                if at >= 0:
                    table.occupy(at, -1)
        finally:
            table.unlock()

    def _look(self, plan: Plan, tokens: int, now_us: int) -> tuple[list[_Found], bool]:
        """Every window of the plan as it stands now, and whether all of them have room; nothing is counted yet."""
        table = self._table
        words = table.words
        found: list[_Found] = []
        fits = True
        for window in plan.windows:
            width = window.width
            limit = window.limit
            tick = now_us // width
            elapsed = now_us - tick * width
            at = window.at
            if at < 0 or words[at] != window.low or words[at + 1] != window.high:
                at = window.at = table.find_window(window.low, window.high, width, tick)
            if words[at + 2] != tick:
                current = table.advance(at, tick)
                if current != tick:
                    tick, elapsed = current, 0
            amount = window.amount(tokens)
            room = (limit - words[at + 3] - amount) * width + words[at + RING + (tick + 1) % TICKS] * elapsed
            if room < 0:
                fits = False
            found.append((at, tick, elapsed, amount, room))
        return found, fits

    def _places(self, plan: Plan, now_us: int) -> list[tuple[Slots, int]]:
        words = self._table.words
        places = []
        for slots in plan.slots:
            at = slots.at
            if at < 0 or words[at] != slots.low or words[at + 1] != slots.high:
                at = slots.at = self._table.find_slots(slots.low, slots.high, now_us)
            if at >= 0:
                words[at + 2] = now_us
            places.append((slots, at))
        return places

    def _free(self, places: list[tuple[Slots, int]]) -> list[int]:
        words = self._table.words
        return [slots.limit - words[at + 3] if at >= 0 else slots.limit for slots, at in places]

    def _reap(self) -> bool:
        """Full slots may belong to a process that is gone. Looking costs 20 µs a process, so not at every refusal."""
        clock = time.monotonic()
        if clock - self._reaped < _REAP_EVERY_S:
            return False
        self._reaped = clock
        return self._table.reap() > 0

    def _refusal(self, plan: Plan, found: list[_Found], free: list[int]) -> Refusal:
        states, waits = [], []
        for window, (at, tick, elapsed, amount, _) in zip(plan.windows, found, strict=True):
            counts = self._table.counts(at, tick)
            left = remaining(counts, elapsed, window.width, window.limit)
            states.append((left, reset_us(counts, elapsed, window.width)))
            waits.append(wait_us(counts, elapsed, window.width, amount, window.limit))
        return plan.refusal(states, waits, free)
