"""The order of targets, cooldowns, and the policy after failures, without I/O."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import Cooldown, Model, ProviderKey, Routing
from penstock.gateway.upstream.cooldowns import Cooldowns, shared_words
from penstock.gateway.upstream.routing import FailurePolicy, RoundRobin, backoff_s, order_targets
from penstock.gateway.upstream.target import Target as RealTarget
from penstock.gateway.upstream.target import UpstreamFailure
from penstock.secrets import Secret


class Target(RealTarget):
    """A target with only the attributes that routing uses."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.key = ProviderKey(id="k", name="k", secret=Secret(fields.pop("secret", "sk-1")))
        fields.setdefault("cooldown", Cooldown(min_failures=1))
        self.model = Model(id=name, name=name, **fields)

    def __repr__(self) -> str:
        return self.model.name


def failure(error: str = "upstream_status", status: int | None = 500, **more: Any) -> UpstreamFailure:
    return UpstreamFailure(error, status, Refusal(502, "x", "x"), retryable=more.pop("retryable", True), **more)


def names(targets: Any) -> list[str]:
    return [target.model.name for target in targets]


def ordered_names(
    routing: Routing, targets: list[Target], cooldowns: Cooldowns, round_robin: RoundRobin | None = None
) -> list[str]:
    group = Model(id="g", name="g", routing=routing)
    return names(order_targets(group, routing, tuple(targets), cooldowns, round_robin or RoundRobin(), 100.0))


def test_remaining_cooldowns_are_reported_by_model() -> None:
    targets = [Target("a"), Target("b")]
    cooldowns = Cooldowns()
    assert cooldowns.seconds_left(99.0) == {}
    cooldowns.failed(targets[0], failure(retry_after_s=5.0), 99.0, targets)
    assert cooldowns.seconds_left(100.0) == {"a": 4.0, "b": 0.0}
    assert cooldowns.seconds_left(200.0) == {"a": 0.0, "b": 0.0}


def test_healthy_targets_come_before_cooling_ones() -> None:
    targets = [Target("a"), Target("b"), Target("c")]
    cooldowns = Cooldowns()
    routing = Routing(targets=("a", "b", "c"))
    assert ordered_names(routing, targets, cooldowns) == ["a", "b", "c"]
    cooldowns.failed(targets[0], failure(), 99.0, targets)
    assert ordered_names(routing, targets, cooldowns) == ["b", "c", "a"]
    cooldowns.succeeded(targets[0])
    assert ordered_names(routing, targets, cooldowns) == ["a", "b", "c"]
    for target in targets:  # they are also targets of another group
        cooldowns.failed(target, failure(retry_after_s=30.0), 99.0, [*targets, Target("d")])
    with pytest.raises(Refusal) as refused:
        ordered_names(routing, targets, cooldowns)
    assert (refused.value.status, refused.value.type) == (503, "all_candidates_unavailable")
    assert refused.value.retry_after == 29
    assert ordered_names(Routing(targets=("a", "b"), when_all_unavailable="try_anyway"), targets[:2], cooldowns) == [
        "a",
        "b",
    ]


def test_round_robin_rotates_and_max_fallbacks_limits_targets() -> None:
    targets = [Target("a"), Target("b"), Target("c")]
    round_robin = RoundRobin()
    routing = Routing(targets=("a", "b", "c"), strategy="round_robin", max_fallbacks=1)
    assert [ordered_names(routing, targets, Cooldowns(), round_robin) for _ in range(4)] == [
        ["a", "b"],
        ["b", "c"],
        ["c", "a"],
        ["a", "b"],
    ]


@pytest.mark.parametrize(
    ("failure", "cooldown", "seconds"),
    [
        (failure(), Cooldown(), 30),
        (failure(status=429, retry_after_s=12.0), Cooldown(), 12),
        (failure(status=429, retry_after_s=9999.0), Cooldown(), 600),
        (failure(status=429, retry_after_s=12.0), Cooldown(honor_retry_after=False), 30),
        (failure(status=400), Cooldown(), 0),
        (failure(status=401), Cooldown(), 30),
        (failure("timeout", None), Cooldown(), 30),
        (failure("timeout", None), Cooldown(on_timeout=False), 0),
        (failure("transport", None), Cooldown(on_transport=False), 0),
        (failure(), Cooldown(enabled=False), 0),
        (failure("over_limit", None), Cooldown(), 0),
    ],
)
def test_cooldown_duration_depends_on_failure_and_settings(
    failure: UpstreamFailure, cooldown: Cooldown, seconds: int
) -> None:
    target = Target("a", cooldown=msgspec.structs.replace(cooldown, min_failures=1))
    cooldowns = Cooldowns()
    cooldowns.failed(target, failure, 100.0, [target, Target("b")])
    assert cooldowns.cooling(target, 100 + seconds - 0.5) is (seconds > 0)
    assert cooldowns.cooling(target, 100 + seconds + 0.5) is False


def test_changed_model_or_key_has_no_cooldown() -> None:
    cooldowns = Cooldowns()
    cooldowns.failed(Target("a"), failure(), 0.0, [Target("b")])
    assert cooldowns.cooling(Target("a"), 1.0)  # reloaded without a change
    assert not cooldowns.cooling(Target("a", cooldown=Cooldown(enabled=False)), 1.0)
    assert not cooldowns.cooling(Target("a", upstream="another"), 1.0)
    assert not cooldowns.cooling(Target("a", secret="sk-2"), 1.0)


def test_target_is_ejected_after_consecutive_failures_of_different_requests() -> None:
    targets = [Target("a", cooldown=Cooldown()), Target("b", cooldown=Cooldown())]
    cooldowns = Cooldowns()
    for _ in range(2):
        cooldowns.failed(targets[0], failure(), 0.0, targets)
    cooldowns.succeeded(targets[0])
    for _ in range(2):
        cooldowns.failed(targets[0], failure(), 0.0, targets)
    assert not cooldowns.cooling(targets[0], 1.0)
    cooldowns.failed(targets[0], failure(), 0.0, targets)
    assert cooldowns.cooling(targets[0], 1.0)


@pytest.mark.parametrize("last", [failure(), failure(status=429, retry_after_s=7.0)])
def test_last_healthy_target_is_not_ejected(last: UpstreamFailure) -> None:
    targets = [Target("a"), Target("b")]
    cooldowns = Cooldowns()
    for _ in range(5):
        cooldowns.failed(targets[0], failure(), 0.0, targets)
        cooldowns.failed(targets[1], last, 0.0, targets)
    assert [cooldowns.ends_at(target) for target in targets] == [30.0, 0.0]


def test_cooldowns_are_shared_between_workers(tmp_path: Path) -> None:
    first, second = (Cooldowns(shared_words(str(tmp_path / "cooldowns"))) for _ in range(2))
    targets = [Target("a", cooldown=Cooldown(min_failures=2)), Target("b")]
    for worker in (first, second):
        worker.failed(targets[0], failure(), 0.0, targets)
    assert first.cooling(targets[0], 1.0)
    assert second.cooling(targets[0], 1.0)
    second.succeeded(targets[0])
    assert not first.cooling(targets[0], 1.0)


def test_more_targets_than_slots_replace_the_oldest() -> None:
    cooldowns = Cooldowns()
    targets = [Target(f"m{number}") for number in range(2000)]
    for target in targets:
        cooldowns.failed(target, failure(), 0.0, [Target("other")])
    assert cooldowns.cooling(targets[-1], 1.0)


def test_failure_policy_decides_on_retry_and_fallback() -> None:
    plain, group = FailurePolicy(None, 2), FailurePolicy(Routing(targets=("a",)), 2)
    model = Target("a").model
    assert plain.allows_retry(model, failure(), 1, False)
    assert not plain.allows_retry(model, failure(), 2, False)
    assert not plain.allows_retry(model, failure("timeout", None), 0, False)
    assert not group.allows_retry(model, failure("over_limit", None), 0, False)
    assert group.allows_fallback(failure("over_limit", None))
    assert not plain.allows_retry(model, failure(status=400, retryable=False), 0, False)
    assert not group.allows_retry(model, failure(), 0, True)  # there is another target
    assert group.allows_retry(model, failure(), 0, False)
    assert FailurePolicy(Routing(targets=("a",), retries=1), 0).allows_retry(model, failure(), 0, True)
    assert not plain.allows_retry(Target("b", retries=0).model, failure(), 0, False)
    busy = failure(status=429, retryable=False)
    assert not group.allows_fallback(busy)
    assert FailurePolicy(Routing(targets=("a",), retry_on_429=True), 0).allows_fallback(busy)
    assert FailurePolicy(Routing(targets=("a",), fallback_on_statuses=frozenset({429})), 0).allows_fallback(busy)


def test_backoff_doubles_and_respects_retry_after() -> None:
    for retries, least in ((0, 0.25), (1, 0.5), (2, 1.0), (3, 2.0), (9, 2.0)):
        assert least <= backoff_s(retries, failure()) <= least + 0.25
    assert backoff_s(0, failure(retry_after_s=3.0)) == 3.0
    assert backoff_s(0, failure(retry_after_s=60.0)) <= 0.5
