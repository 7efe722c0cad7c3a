"""The limiter that counts in a table on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.limits.plan import Plan, Planner, Slots, Window, WindowState
from penstock.gateway.limits.table import RING, SharedTable
from penstock.gateway.limits.windows import TICKS, remaining, reset_us, wait_us
from penstock.gateway.resources import CallerKey, Model, Policy

__all__ = ["LocalLimiter"]

_UNLIMITED: Final = Reservation()
_REAP_EVERY_S: Final = 1.0
_NO_POLICIES: Final[tuple[Policy, ...]] = ()


class LocalLimiter:
    """Exact across all processes that are attached to the table."""

    degraded = False
    failures = 0

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._planner = Planner()
        self._reaped = 0.0
        with table:
            table.claim_row()

    async def admit(
        self, key: CallerKey, model: Model, policies: Sequence[Policy], tokens: int, now: float
    ) -> Reservation:
        return self.admit_plan(self._planner.plan(key, model, policies), tokens, now)

    async def admit_target(self, model: Model, tokens: int, now: float) -> Reservation:
        return self.admit_plan(self._planner.plan(None, model, _NO_POLICIES), tokens, now)

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        self.settle_now(reservation, tokens, now)

    async def close(self) -> None:
        self._table.close()

    def admit_plan(self, plan: Plan, tokens: int, now: float) -> Reservation:
        if not plan.windows and not plan.slots:
            return _UNLIMITED
        now_us = int(now * 1_000_000)
        table = self._table
        words = table.words
        with table:
            good = True
            found: list[tuple[Window, int, int, int, int]] = []
            for window in plan.windows:
                width = window.width
                limit = window.limit
                wanted, elapsed = divmod(now_us, width)
                at = window.at
                if at < 0 or words[at] != window.low or words[at + 1] != window.high:
                    at = window.at = table.find_window(window.low, window.high, width, wanted)
                tick = wanted if words[at + 2] == wanted else table.advance(at, wanted)
                if tick != wanted:
                    elapsed = 0
                amount = 1
                if window.unit == "tokens":
                    # a request that reserves more than the whole limit waits for a free window, not for ever
                    amount = tokens if tokens < limit else limit
                # windows.fits(), written out: calls are most of the cost here
                if (words[at + 3] + amount - limit) * width > words[at + RING + (tick + 1) % TICKS] * elapsed:
                    good = False
                found.append((window, at, tick, elapsed, amount))
            places = self._places(plan, now_us)
            free = [slots.limit - words[at + 3] if at >= 0 else slots.limit for slots, at in places]
            if any(left <= 0 for left in free) and self._reap(now):
                free = [slots.limit - words[at + 3] if at >= 0 else slots.limit for slots, at in places]
            if not good or any(left <= 0 for left in free):
                states = [self._state(*one, late=True) for one in found]
                refused = plan.refusal(states, free)
            else:
                refused = None
                charges = []
                for window, at, tick, _, amount in found:
                    words[at + 3] += amount
                    words[at + RING + tick % TICKS] += amount
                    if window.unit == "tokens":
                        charges.append((window, tick, amount))
                for _, at in places:
                    if at >= 0:
                        table.occupy(at, 1)
                states = [self._state(*found[index], late=False) for index in plan.shown]
        if refused is not None:
            raise refused
        headers = plan.headers(states, [left - 1 for left in free])
        return Reservation(headers, tuple(charges), plan.slots, self)

    def settle_now(self, reservation: Reservation, tokens: int, now: float) -> None:
        if reservation.settled:
            return
        reservation.settled = True
        now_us = int(now * 1_000_000)
        table = self._table
        words = table.words
        with table:
            for window, tick, reserved in reservation.charges:
                assert isinstance(window, Window)
                change = tokens - reserved
                if not change:
                    continue
                wanted = now_us // window.width
                at = table.find_window(window.low, window.high, window.width, wanted)
                current = table.advance(at, wanted)
                # what was reserved too much goes back where it was taken, if that still counts at all;
                # what came on top is used now
                if change > 0:
                    tick = current
                elif not current - TICKS < tick <= current:
                    continue
                slot = at + RING + tick % TICKS
                change = max(change, -words[slot])
                words[at + 3] = max(0, words[at + 3] + change)
                words[slot] += change
            for slots in reservation.slots:
                assert isinstance(slots, Slots)
                at = table.find_slots(slots.low, slots.high, now_us)
                if at >= 0:
                    table.occupy(at, -1)

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

    def _reap(self, now: float) -> bool:
        """Full slots may belong to a process that is gone. Looking costs 20 µs a process, so not at every refusal."""
        clock = time.monotonic()
        if clock - self._reaped < _REAP_EVERY_S:
            return False
        self._reaped = clock
        return self._table.reap() > 0

    def _state(self, window: Window, at: int, tick: int, elapsed: int, amount: int, *, late: bool) -> WindowState:
        counts = self._table.counts(at, tick)
        total = self._table.words[at + 3]
        return WindowState(
            window,
            remaining(total, counts[0], elapsed, window.width, window.limit),
            reset_us(counts, elapsed, window.width),
            wait_us(counts, elapsed, window.width, amount, window.limit) if late else 0,
        )
