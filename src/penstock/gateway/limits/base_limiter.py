"""The base class of the limiters: looks up the limits of a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.limits.request_limits import RequestLimits, RequestLimitsCache
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy

__all__ = ["BaseLimiter"]

_UNLIMITED: Final = Reservation()
_NO_POLICIES: Final[tuple[Policy, ...]] = ()


class BaseLimiter(ABC):
    def __init__(self) -> None:
        self._limits_cache = RequestLimitsCache()

    async def enter(self, key: CallerKey, policies: Sequence[Policy], now: float) -> Reservation:
        limits = self._limits_cache.get(key, None, policies)
        if not limits.windows and not limits.concurrency:
            return _UNLIMITED
        return await self._admit(limits, 1, now, charge=False)

    async def check(self, key: CallerKey, model: Model, policies: Sequence[Policy], tokens: int, now: float) -> None:
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
        limits = self._limits_cache.get(key, model, policies)
        if entered is not None and entered.slots:
            limits = limits.without_key_slot
        if not limits.windows and not limits.concurrency:
            return _UNLIMITED
        return await self._admit(limits, tokens, now, charge=True)

    async def admit_target(self, model: Model, tokens: int, now: float) -> Reservation:
        return await self.admit(None, model, _NO_POLICIES, tokens, now)

    @abstractmethod
    async def _admit(self, limits: RequestLimits, tokens: int, now: float, *, charge: bool) -> Reservation:
        """Check the windows, charge them if `charge`, and take the slots. There is at least one limit. Raises Refusal."""
