"""Which targets a request may use, in which order, and what a failure means for the ones after it. No I/O."""

from __future__ import annotations

import random
from typing import NamedTuple

from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.upstream import Target, UpstreamFailure
from penstock.gateway.resources.snapshot import Model, ProviderKey, Routing

__all__ = ["Cooldowns", "Rules", "Turns", "backoff_s", "order"]

FIRST_BACKOFF_S, LAST_BACKOFF_S, JITTER_S = 0.25, 2.0, 0.25
LONGEST_HINT_S = 5.0
"""A provider's Retry-After up to this is waited for; a longer one is passed on to the caller."""
RETRY_ALL_S = 30
_TOO_MANY = 429
_NOT_AGAIN = frozenset(("timeout", "over_limit"))
"""Asking once more would take as long again, or find the same limit reached."""


class Cooldowns:
    """Direct models that failed lately, and until when they are left alone. One for each worker."""

    def __init__(self) -> None:
        self._resting: dict[str, tuple[Model, ProviderKey, float]] = {}
        """By the model's id. Who changed a model or its provider key may have mended it: what failed is another one."""

    def cooling(self, target: Target, now: float) -> bool:
        found = self._resting.get(target.model.id)
        if found is None:
            return False
        model, key, until = found
        return until > now and model == target.model and key == target.key

    def failed(self, target: Target, failure: UpstreamFailure, now: float) -> None:
        rules = target.model.cooldown
        if not rules.enabled:
            return
        triggers = {"timeout": rules.on_timeout, "transport": rules.on_transport, "aborted": rules.on_transport}
        if not triggers.get(failure.error, failure.status in rules.statuses):
            return
        seconds: float = rules.default_seconds
        if rules.honor_retry_after and failure.retry_after_s is not None:
            seconds = failure.retry_after_s
        until = now + min(seconds, rules.max_seconds)
        self._resting[target.model.id] = (target.model, target.key, until)

    def succeeded(self, target: Target) -> None:
        if self._resting:
            self._resting.pop(target.model.id, None)


class Turns:
    """Whose turn it is in each round-robin group."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def take(self, group: Model, count: int) -> int:
        turn = self._next.get(group.id, 0)
        self._next[group.id] = turn + 1
        return turn % count


def order(
    group: Model, routing: Routing, targets: tuple[Target, ...], cooldowns: Cooldowns, turns: Turns, now: float
) -> tuple[Target, ...]:
    """The targets to try, healthy ones first; a Refusal when there is none. (A direct model is always tried: there is
    nothing that it would be spared for.)"""
    if routing.strategy == "round_robin" and len(targets) > 1:
        turn = turns.take(group, len(targets))
        targets = (*targets[turn:], *targets[:turn])
    healthy = [target for target in targets if not cooldowns.cooling(target, now)]
    if not healthy and routing.when_all_unavailable == "fail":
        raise Refusal(
            503,
            "all_candidates_unavailable",
            f"Every target of `{group.name}` failed lately and is left alone for a while.",
            retry_after=RETRY_ALL_S,
        )
    cooling = [target for target in targets if cooldowns.cooling(target, now)] if len(healthy) < len(targets) else []
    chosen = (*healthy, *cooling)
    if routing.max_fallbacks is not None:
        chosen = chosen[: routing.max_fallbacks + 1]
    return chosen


class Rules(NamedTuple):
    """What to do after a failure."""

    routing: Routing | None
    default_retries: int

    def moves_on(self, failure: UpstreamFailure) -> bool:
        """Whether another target may be asked."""
        if failure.retryable:
            return True
        routing = self.routing
        if routing is None or failure.status is None:
            return False
        return failure.status in routing.fallback_on_statuses or (failure.status == _TOO_MANY and routing.retry_on_429)

    def tries_again(self, model: Model, failure: UpstreamFailure, retries: int, others_left: bool) -> bool:
        """Whether the same target is asked once more, after `retries` times so far."""
        if failure.error in _NOT_AGAIN or not self.moves_on(failure):
            return False
        allowed = model.retries
        if allowed is None and self.routing is not None:
            allowed = self.routing.retries
        if allowed is None:
            allowed = 0 if others_left else self.default_retries
        return retries < allowed


def backoff_s(retries: int, failure: UpstreamFailure) -> float:
    """How long to wait before the same target is asked again, `retries` times having been asked again so far."""
    hint = failure.retry_after_s
    if hint is not None and 0 < hint <= LONGEST_HINT_S:
        return hint
    doubled: float = FIRST_BACKOFF_S * 2**retries
    return min(doubled, LAST_BACKOFF_S) + random.uniform(0, JITTER_S)
