"""The limiter that counts in the shared table of this machine."""

from __future__ import annotations

import time
from typing import Final

from penstock.gateway.limits.counter_table import RING, SharedTable
from penstock.gateway.limits.limiter import Limiter, Reservation
from penstock.gateway.limits.request_limits import ConcurrencyLimit, RequestLimits, WindowLimit
from penstock.gateway.limits.windows import TICKS, remaining, reset_us, wait_us
from penstock.gateway.refusal import Refusal

_REAP_EVERY_S: Final = 1.0

_WindowState = tuple[int, int, int, int, int]
"""(offset of the record, tick, µs since the tick began, amount to charge, headroom) of a window. The headroom is (limit -
used - amount) * width."""


class LocalLimiter(Limiter):
    """Counts exactly across all processes that are attached to the table."""

    def __init__(self, table: SharedTable) -> None:
        super().__init__(table)
        self._last_reap = 0.0
        self._closed = False
        table.claim_row()

    async def close(self) -> None:
        """Close the table, which releases the slots of this process. Later settlements do nothing."""
        if not self._closed:
            self._closed = True
            self.table.close()

    async def _admit(self, limits: RequestLimits, tokens: int, now: float, *, charge: bool) -> Reservation:
        """Check all limits before charging any, so that a refused request is not counted. Without `charge`, only slots are
        taken."""
        now_us = int(now * 1_000_000)
        table = self.table
        words = table.words
        table.lock()
        try:
            windows = [self._read(window, tokens, now_us) for window in limits.windows]
            offsets = [self._slots(limit, now_us) for limit in limits.concurrency]
            free = self._free(limits, offsets)
            if free and min(free) <= 0 and self._reap():
                free = self._free(limits, offsets)
            if (windows and min(window[4] for window in windows) < 0) or (free and min(free) <= 0):
                raise self._refusal(limits, windows, free)
            for offset, tick, _, amount, _ in windows if charge else ():
                words[offset + RING + tick % TICKS] += amount
            for offset in offsets:
                if offset >= 0:
                    table.occupy(offset, 1)
        finally:
            table.unlock()
        charged = limits.token_windows if charge else ()
        charges = tuple((limits.windows[index], windows[index][1], windows[index][3]) for index in charged)
        states = [
            (windows[index][4] // limits.windows[index].width, TICKS * limits.windows[index].width - windows[index][2])
            for index in limits.reported
        ]
        return Reservation(limits.headers(states, [left - 1 for left in free]), charges, limits.concurrency, self)

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        if reservation.settled or self._closed:
            return
        reservation.settled = True
        now_us = int(now * 1_000_000)
        table = self.table
        words = table.words
        table.lock()
        try:
            for window, tick, reserved in reservation.charges:
                change = tokens - reserved
                if not change:
                    continue
                offset, current = self._find(window, now_us // window.width)
                # Unused tokens are refunded to the tick that was charged, if it is still in the window; tokens beyond
                # the reservation are charged to the current tick.
                if change < 0 and not current - TICKS < tick <= current:
                    continue
                counter = offset + RING + (tick if change < 0 else current) % TICKS
                words[counter] = max(0, words[counter] + change)
            for limit in reservation.slots:
                offset = self._slots(limit, now_us)
                if offset >= 0:
                    table.occupy(offset, -1)
        finally:
            table.unlock()

    def _read(self, window: WindowLimit, tokens: int, now_us: int) -> _WindowState:
        width, tick = window.width, now_us // window.width
        offset, current = self._find(window, tick)
        elapsed = now_us - tick * width if current == tick else 0
        amount = window.amount(tokens)
        ring = self.table.words[offset + RING : offset + RING + TICKS].tolist()
        headroom = (window.limit - sum(ring) - amount) * width + ring[(current + 1) % TICKS] * elapsed
        return offset, current, elapsed, amount, headroom

    def _find(self, window: WindowLimit, tick: int) -> tuple[int, int]:
        """Return the offset of the window's record, which is advanced to `tick`, and its tick."""
        words, offset = self.table.words, window.offset
        if offset >= 0 and words[offset] == window.low and words[offset + 1] == window.high:
            return offset, self.table.advance(offset, tick)
        window.offset, tick = self.table.window(window.low, window.high, window.width, tick)
        return window.offset, tick

    def _slots(self, limit: ConcurrencyLimit, now_us: int) -> int:
        """Return the offset of the limit's record; -1 if there is none."""
        words, offset = self.table.words, limit.offset
        if offset >= 0 and words[offset] == limit.low and words[offset + 1] == limit.high:
            words[offset + 2] = now_us
        else:
            offset = limit.offset = self.table.slots(limit.low, limit.high, now_us)
        return offset

    def _free(self, limits: RequestLimits, offsets: list[int]) -> list[int]:
        return [
            limit.limit - self.table.held(offset) if offset >= 0 else limit.limit
            for limit, offset in zip(limits.concurrency, offsets, strict=True)
        ]

    def _reap(self) -> bool:
        """Release the slots of dead processes. Takes 20 µs per process, so at most once per _REAP_EVERY_S."""
        now = time.monotonic()
        if now - self._last_reap < _REAP_EVERY_S:
            return False
        self._last_reap = now
        return self.table.reap() > 0

    def _refusal(self, limits: RequestLimits, windows: list[_WindowState], free: list[int]) -> Refusal:
        states, waits = [], []
        for window, (offset, tick, elapsed, amount, _) in zip(limits.windows, windows, strict=True):
            counts = self.table.counts(offset, tick)
            left = remaining(counts, elapsed, window.width, window.limit)
            states.append((left, reset_us(counts, elapsed, window.width)))
            waits.append(wait_us(counts, elapsed, window.width, amount, window.limit))
        return limits.refusal(states, waits, free)
