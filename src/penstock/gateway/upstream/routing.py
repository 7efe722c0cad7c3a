"""Routing: the order of targets, and what to do after a failure. No I/O."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import Model, Routing
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.gateway.upstream.target import Target, UpstreamFailure

FIRST_BACKOFF_S, LAST_BACKOFF_S, JITTER_S = 0.25, 2.0, 0.25
MAX_RETRY_AFTER_S = 5.0
"""A retry waits for a provider's Retry-After up to this. A longer one is only passed on to the caller."""
_TOO_MANY = 429
_NEVER_RETRIED = frozenset(("timeout", "over_limit"))
"""Errors after which a retry would take as long again, or find the same limit reached."""


class RoundRobin:
    """The position of each round-robin group."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def next_index(self, group: Model, count: int) -> int:
        index = self._next.get(group.id, 0)
        self._next[group.id] = index + 1
        return index % count


def order_targets(
    group: Model,
    routing: Routing,
    targets: tuple[Target, ...],
    cooldowns: Cooldowns,
    round_robin: RoundRobin,
    now: float,
) -> tuple[Target, ...]:
    """Return the targets to try, healthy ones first. Raise Refusal if all are cooling down and the group says `fail`.

    Only for groups: a direct model has no alternative, so its cooldown is ignored.
    """
    if routing.strategy == "round_robin" and len(targets) > 1:
        first = round_robin.next_index(group, len(targets))
        targets = (*targets[first:], *targets[:first])
    healthy = [target for target in targets if not cooldowns.cooling(target, now)]
    if not healthy and routing.when_all_unavailable == "fail":
        ends_at = min(cooldowns.ends_at(target) for target in targets)
        raise Refusal(
            503,
            "all_candidates_unavailable",
            f"Every target of `{group.name}` failed recently and is in its cooldown; try again later.",
            retry_after=max(1, math.ceil(ends_at - now)),
        )
    cooling = [target for target in targets if cooldowns.cooling(target, now)] if len(healthy) < len(targets) else []
    chosen = (*healthy, *cooling)
    if routing.max_fallbacks is not None:
        chosen = chosen[: routing.max_fallbacks + 1]
    return chosen


class FailurePolicy(NamedTuple):
    """Decides what to do after a failure."""

    routing: Routing | None
    default_retries: int

    def allows_fallback(self, failure: UpstreamFailure) -> bool:
        """Return whether another target may be tried."""
        if failure.retryable:
            return True
        routing = self.routing
        if routing is None or failure.status is None:
            return False
        return failure.status in routing.fallback_on_statuses or (failure.status == _TOO_MANY and routing.retry_on_429)

    def allows_retry(self, model: Model, failure: UpstreamFailure, retries: int, others_left: bool) -> bool:
        """Return whether to retry the same target, given how often it was retried."""
        if failure.error in _NEVER_RETRIED or not self.allows_fallback(failure):
            return False
        allowed = model.retries
        if allowed is None and self.routing is not None:
            allowed = self.routing.retries
        if allowed is None:
            allowed = 0 if others_left else self.default_retries
        return retries < allowed


def backoff_s(retries: int, failure: UpstreamFailure) -> float:
    """Return the wait before the next retry of the same target, given how often it was retried."""
    hint = failure.retry_after_s
    if hint is not None and 0 < hint <= MAX_RETRY_AFTER_S:
        return hint
    doubled: float = FIRST_BACKOFF_S * 2**retries
    return min(doubled, LAST_BACKOFF_S) + random.uniform(0, JITTER_S)
