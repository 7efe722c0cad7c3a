"""The interface of the limiters, and the part that they share: which limits apply to a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from penstock.gateway.limits.counter_table import SharedTable
from penstock.gateway.limits.request_limits import ConcurrencyLimit, RequestLimits, RequestLimitsCache, WindowLimit
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy


class Reservation:
    """What an admitted request holds until it is settled.

    `charges` are the token windows it is charged to and `slots` the concurrency limits it occupies a slot of.
    """

    def __init__(
        self,
        headers: tuple[tuple[str, str], ...] = (),
        charges: tuple[tuple[WindowLimit, int, int], ...] = (),
        slots: tuple[ConcurrencyLimit, ...] = (),
        owner: object = None,
        id_: bytes = b"",
    ) -> None:
        self.headers = headers
        self.charges = charges
        """(bucket, tick, tokens reserved)"""
        self.slots = slots
        self.owner = owner
        self.id = id_
        """Makes the settlement in Redis idempotent."""
        self.settled = not charges and not slots


_UNLIMITED: Final = Reservation()


class Limiter(ABC):
    degraded = False
    """True while limits are counted on this machine only because Redis is unreachable."""
    failures = 0
    """Number of failed accesses to Redis."""

    def __init__(self, table: SharedTable) -> None:
        self.table = table
        self._limits_cache = RequestLimitsCache()

    @property
    def evicted(self) -> int:
        """Number of windows that this process replaced before they expired."""
        return self.table.evicted

    async def enter(self, key: CallerKey, policies: Sequence[Policy], now: float) -> Reservation:
        """Check the limits of the key and take its concurrency slot. Charges nothing; raises Refusal 429."""
        limits = self._limits_cache.get(key, None, policies)
        if not limits.windows and not limits.concurrency:
            return _UNLIMITED
        return await self._admit(limits, 1, now, charge=False)

    async def check(self, key: CallerKey, model: Model, policies: Sequence[Policy], tokens: int, now: float) -> None:
        """Raise Refusal 429 if `admit` would, but charge nothing."""
        limits = self._limits_cache.get(key, model, policies)
        if limits.windows:
            await self._admit(limits.without_slots, tokens, now, charge=False)

    async def admit(
        self,
        key: CallerKey | None,
        model: Model,
        policies: Sequence[Policy],
        tokens: int,
        now: float,
        entered: Reservation | None = None,
    ) -> Reservation:
        """Charge one request and `tokens` to every limit that applies, or charge nothing and raise Refusal 429. `entered`
        is the result of `enter`, which has taken the slot of the key."""
        limits = self._limits_cache.get(key, model, policies)
        if entered is not None and entered.slots:
            limits = limits.without_key_slot
        if not limits.windows and not limits.concurrency:
            return _UNLIMITED
        return await self._admit(limits, tokens, now, charge=True)

    async def admit_target(self, model: Model, tokens: int, now: float) -> Reservation:
        """Like `admit`, for the limits of a routing group's target only."""
        return await self.admit(None, model, (), tokens, now)

    @abstractmethod
    async def _admit(self, limits: RequestLimits, tokens: int, now: float, *, charge: bool) -> Reservation:
        """Check the windows, charge them if `charge`, and take the slots. There is at least one limit. Raises Refusal."""

    @abstractmethod
    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        """Replace the reserved tokens by those used and release the concurrency slots. A second call does nothing.

        Never waits for the network, so that it is safe in the `finally` of a cancelled request.
        """

    @abstractmethod
    async def close(self) -> None: ...
