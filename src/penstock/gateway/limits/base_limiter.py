"""From a request to the plan by which it is counted: what the limiters have in common, wherever they count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from penstock.gateway.limits.limit_plan import Plan, Planner
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy

__all__ = ["BaseLimiter"]

_UNLIMITED: Final = Reservation()
_NO_POLICIES: Final[tuple[Policy, ...]] = ()


class BaseLimiter(ABC):
    def __init__(self) -> None:
        self._planner = Planner()

    async def admit(
        self, key: CallerKey | None, model: Model, policies: Sequence[Policy], tokens: int, now: float
    ) -> Reservation:
        plan = self._planner.plan(key, model, policies)
        if not plan.windows and not plan.slots:
            return _UNLIMITED
        return await self._admit(plan, tokens, now)

    async def admit_target(self, model: Model, tokens: int, now: float) -> Reservation:
        return await self.admit(None, model, _NO_POLICIES, tokens, now)

    @abstractmethod
    async def _admit(self, plan: Plan, tokens: int, now: float) -> Reservation:
        """Of a plan with something in it; raises Refusal."""
