"""What one request takes from the limits: the slot of its key, its reservation, and that of the target it tries."""

from __future__ import annotations

from time import time

from penstock.gateway.limits.limiter import Limiter, Reservation
from penstock.gateway.resources.snapshot import CallerKey, Model, RateLimit, Snapshot

_NO_LIMITS = RateLimit()


class Quota:
    """The reservations of one request. Every one is settled exactly once."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.tokens = 0
        """Estimated tokens of the request and its reply."""
        self._slot: Reservation | None = None
        """The concurrency slot of the key."""
        self._slot_headers: tuple[tuple[str, str], ...] = ()
        self._reservation: Reservation | None = None
        self._target: Reservation | None = None
        """The reservation against the limits of the current target."""
        self._settled_tokens = 0
        """Tokens that earlier attempts used."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The state of the limits, for the caller."""
        return self._slot_headers if self._reservation is None else self._reservation.headers + self._slot_headers

    @staticmethod
    def applies(key: CallerKey, snapshot: Snapshot, model: Model | None = None) -> bool:
        """Return False if neither the key nor the model has limits, and no policy can apply to them."""
        if snapshot.policies or key.rate_limit != _NO_LIMITS:
            return True
        return model is not None and model.rate_limit != _NO_LIMITS

    @property
    def used(self) -> bool:
        """False if there is nothing to settle."""
        return self._slot is not None or self._reservation is not None or self._target is not None

    async def take_slot(self, key: CallerKey, snapshot: Snapshot) -> None:
        """Check the limits of the key and take its slot. Charges nothing; raises Refusal 429."""
        slot = self._slot = await self._limiter.enter(key, snapshot.policies, time())
        if slot.slots:
            self._slot_headers = tuple(pair for pair in slot.headers if pair[0].endswith("-concurrent"))

    async def check(self, key: CallerKey, model: Model, snapshot: Snapshot) -> None:
        """Raise Refusal 429 if `reserve` would, but charge nothing."""
        await self._limiter.check(key, model, snapshot.policies, self.tokens, time())

    async def reserve(self, key: CallerKey, model: Model, snapshot: Snapshot) -> None:
        self._reservation = await self._limiter.admit(key, model, snapshot.policies, self.tokens, time(), self._slot)

    async def reserve_target(self, model: Model) -> None:
        self._target = await self._limiter.admit_target(model, self.tokens, time())

    async def settle_target(self, used_tokens: int) -> None:
        """Charge the target's limits with the tokens of its own attempt. `used_tokens` are those of all attempts so far."""
        spent, self._settled_tokens = used_tokens - self._settled_tokens, used_tokens
        reservation, self._target = self._target, None
        if reservation is not None:
            await self._limiter.settle(reservation, spent, time())

    async def settle(self, used_tokens: int) -> None:
        """Replace all reservations by what was used."""
        await self.settle_target(used_tokens)
        if self._reservation is not None and not self._reservation.settled:
            await self._limiter.settle(self._reservation, used_tokens, time())
        if self._slot is not None and not self._slot.settled:
            await self._limiter.settle(self._slot, 0, time())
