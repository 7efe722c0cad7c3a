"""Limits as callers see them, counted locally and in Redis."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.gateway.limits import Limiter, Reservation, open_limiter
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.config import LimitsConfig
from support.limit_objects import admitted, attempt, key, model, policy, temporary_table

FRESH = itertools.count()
RunWithLimiter = Callable[[Callable[[Limiter], Awaitable[Any]]], Any]


@pytest.fixture(params=["local", "redis"])
def run_with_limiter(request: pytest.FixtureRequest) -> RunWithLimiter:
    """Return a function that runs a coroutine with a limiter of each kind."""
    url = request.getfixturevalue("redis_server").url if request.param == "redis" else None

    def start(work: Callable[[Limiter], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            limiter = open_limiter(LimitsConfig(redis_url=url), temporary_table())
            try:
                return await work(limiter)
            finally:
                assert not limiter.degraded
                await limiter.close()

        return asyncio.run(run())

    return start


def now() -> float:
    return time.time()


async def settle(limiter: Limiter, outcome: Reservation | Refusal, tokens: int) -> None:
    assert isinstance(outcome, Reservation)
    await limiter.settle(outcome, tokens, now())
    # Redis settles in the background
    for task in list(getattr(limiter, "_tasks", ())):
        await task


@pytest.mark.parametrize(("field", "unit"), [("rpm", "minute"), ("rph", "hour"), ("rpd", "day")])
def test_requests_above_the_limit_get_429(run_with_limiter: RunWithLimiter, field: str, unit: str) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        return [await attempt(limiter, key(**{field: 2}), now=now()) for _ in range(3)]

    first, second, third = run_with_limiter(work)
    assert admitted(first)
    assert admitted(second)
    assert isinstance(third, Refusal)
    body = orjson.loads(third.body())["error"]
    assert (third.status, body["type"]) == (429, "rate_limit_exceeded")
    assert "request limit of 2" in body["message"]
    assert unit in body["message"]
    assert "policy" not in body


def test_per_second_limit_admits_again_after_a_second(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        while True:
            caller = key(f"key-{next(FRESH)}", rps=2)
            started = now()
            burst = [admitted(await attempt(limiter, caller, now=now())) for _ in range(3)]
            if now() - started < 0.9:
                break
            # the machine was too busy: try again with another key
        await asyncio.sleep(1.05)
        return [*burst, admitted(await attempt(limiter, caller, now=now()))]

    assert run_with_limiter(work) == [True, True, False, True]


def test_limit_of_zero_admits_nothing(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        zero_limits: list[dict[str, int]] = [{"rpm": 0}, {"concurrency": 0}, {"tpm": 0}, {"tpd": 0}]
        return [admitted(await attempt(limiter, key(**limits), tokens=50, now=now())) for limits in zero_limits]

    assert run_with_limiter(work) == [False] * 4


def test_request_without_limits_has_no_headers(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        outcome = await attempt(limiter, key(), tokens=10**9, now=now())
        await settle(limiter, outcome, 5)
        return outcome

    outcome = run_with_limiter(work)
    assert isinstance(outcome, Reservation)
    assert outcome.headers == ()


def test_headers_show_only_the_limits_of_the_key(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        caller = key(rpm=10, rpd=4, tpm=1000, concurrency=3)
        requested = model(rpm=1, tpm=5000)
        return await attempt(limiter, caller, requested, [policy(max_requests=1)], tokens=300, now=now())

    outcome = run_with_limiter(work)
    assert isinstance(outcome, Reservation)
    headers = dict(outcome.headers)
    # a request counts for at least 31/32 of the window
    assert 83_600 < int(headers.pop("x-ratelimit-reset-requests").removesuffix("s")) <= 86_400
    assert 58 < int(headers.pop("x-ratelimit-reset-tokens").removesuffix("s")) <= 60
    assert headers == {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "700",
        "x-ratelimit-limit-concurrent": "3",
        "x-ratelimit-remaining-concurrent": "2",
    }


def test_refusal_has_retry_after_and_headers(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        return [await attempt(limiter, key(rpm=1), now=now()) for _ in range(2)]

    refusal = run_with_limiter(work)[1]
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.retry_after, int)
    assert 30 < refusal.retry_after <= 60
    assert dict(refusal.headers)["x-ratelimit-remaining-requests"] == "0"


def test_unused_reserved_tokens_are_refunded(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=1000)
        first = await attempt(limiter, caller, tokens=900, now=now())
        outcomes = [admitted(await attempt(limiter, caller, tokens=200, now=now()))]
        await settle(limiter, first, 100)
        outcomes.append(admitted(await attempt(limiter, caller, tokens=900, now=now())))
        outcomes.append(admitted(await attempt(limiter, caller, tokens=1, now=now())))
        return outcomes

    assert run_with_limiter(work) == [False, True, False]


def test_settling_twice_refunds_once(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=100, concurrency=1)
        first = await attempt(limiter, caller, tokens=60, now=now())
        await settle(limiter, first, 50)
        await settle(limiter, first, 0)
        second = await attempt(limiter, caller, tokens=50, now=now())
        return [admitted(second), admitted(await attempt(limiter, caller, tokens=0, now=now()))]

    assert run_with_limiter(work) == [True, False]


def test_tokens_beyond_the_reservation_are_charged(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        caller = key(tpm=100)
        await settle(limiter, await attempt(limiter, caller, tokens=10, now=now()), 250)
        return await attempt(limiter, caller, tokens=1, now=now())

    outcome = run_with_limiter(work)
    assert isinstance(outcome, Refusal)
    assert "token limit of 100 per minute" in outcome.message


def test_reservation_above_the_limit_is_admitted_by_an_empty_window(
    run_with_limiter: RunWithLimiter,
) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=100)
        first = await attempt(limiter, caller, tokens=5000, now=now())
        second = await attempt(limiter, caller, tokens=1, now=now())
        await settle(limiter, first, 30)
        third = await attempt(limiter, caller, tokens=70, now=now())
        return [admitted(first), admitted(second), admitted(third)]

    assert run_with_limiter(work) == [True, False, True]


def test_slot_is_released_when_settled_and_its_refusal_has_no_retry_after(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> tuple[Reservation | Refusal, bool]:
        caller = key(concurrency=2)
        first, _, third = [await attempt(limiter, caller, now=now()) for _ in range(3)]
        await settle(limiter, first, 0)
        return third, admitted(await attempt(limiter, caller, now=now()))

    refusal, later = run_with_limiter(work)
    assert isinstance(refusal, Refusal)
    assert (refusal.type, refusal.retry_after) == ("rate_limit_exceeded", None)
    assert "2 concurrent" in refusal.message
    assert dict(refusal.headers)["x-ratelimit-remaining-concurrent"] == "0"
    assert later


def test_refused_request_is_charged_to_no_bucket(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> tuple[list[bool], Reservation | Refusal]:
        alice, bob = key("alice", rpm=5, tpm=100, concurrency=5), key("bob", rpm=5)
        requested, other = model(rpm=1), model("other")
        outcomes = [admitted(await attempt(limiter, bob, requested, now=now()))]
        # the model is full, so nothing is charged to alice's limits
        outcomes += [admitted(await attempt(limiter, alice, requested, tokens=60, now=now())) for _ in range(10)]
        return outcomes, await attempt(limiter, alice, other, tokens=60, now=now())

    outcomes, last = run_with_limiter(work)
    assert outcomes == [True] + [False] * 10
    assert isinstance(last, Reservation)
    headers = dict(last.headers)
    assert headers["x-ratelimit-remaining-requests"] == "4"
    assert headers["x-ratelimit-remaining-tokens"] == "40"
    assert headers["x-ratelimit-remaining-concurrent"] == "4"


def test_key_limits_are_separate_and_model_limits_are_shared(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        alice, bob = key("alice", rpm=1), key("bob", rpm=1)
        limited = model("limited", rpm=1)
        return [
            admitted(await attempt(limiter, alice, now=now())),
            admitted(await attempt(limiter, bob, limited, now=now())),
            admitted(await attempt(limiter, key("carol"), limited, now=now())),
        ]

    assert run_with_limiter(work) == [True, True, False]


def test_routing_target_has_its_own_limits(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        target = model("target", rpm=1)
        await limiter.admit_target(target, 0, now())
        with pytest.raises(Refusal) as refused:
            await limiter.admit_target(target, 0, now())
        return [refused.value.headers == (), "of this model" in refused.value.message]

    assert run_with_limiter(work) == [True, True]


ALICE = {"team_id": "red", "user_id": "u1"}
ALAN = {"team_id": "red", "user_id": "u2"}
BOB = {"team_id": "blue", "user_id": "u1"}


@pytest.mark.parametrize(
    ("fields", "second", "shared"),
    [
        ({"scope": "api_key"}, ALAN, False),
        ({"scope": "api_key", "scope_ref": "id-first"}, ALAN, False),
        ({"scope": "model"}, BOB, True),
        ({"scope": "model", "scope_ref": "id-gpt"}, BOB, True),
        ({"scope": "model", "scope_ref": "id-other"}, BOB, False),
        ({"scope": "team"}, ALAN, True),
        ({"scope": "team"}, BOB, False),
        ({"scope": "team", "scope_ref": "red"}, ALAN, True),
        ({"scope": "member"}, BOB, True),
        ({"scope": "member", "scope_ref": "u1"}, BOB, True),
        ({"scope": "team_member"}, BOB, False),
        ({"scope": "team_member", "scope_ref": "red"}, ALAN, False),
        ({"scope": "team_member", "scope_ref": "red"}, ALICE, True),
    ],
)
def test_policy_has_one_bucket_per_scope_member(
    run_with_limiter: RunWithLimiter, fields: dict[str, str], second: dict[str, str], shared: bool
) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        policies = (policy(max_requests=1, **fields),)
        requested = model()
        return [
            await attempt(limiter, key("first", **ALICE), requested, policies, now=now()),
            await attempt(limiter, key("second", **second), requested, policies, now=now()),
        ]

    first, last = run_with_limiter(work)
    assert admitted(first)
    assert admitted(last) != shared
    if isinstance(last, Refusal):
        assert last.policy == {"id": "id-fair", "name": "fair"}
        assert isinstance(last.retry_after, int)
        assert 30 < last.retry_after <= 60


def test_policy_limits_tokens_per_hour(run_with_limiter: RunWithLimiter) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        policies = (policy(window="hour", max_tokens=100),)
        requested, caller = model(), key()
        return [admitted(await attempt(limiter, caller, requested, policies, 60, now())) for _ in range(2)]

    assert run_with_limiter(work) == [True, False]


def test_changed_limit_keeps_the_counts(run_with_limiter: RunWithLimiter) -> None:
    """A reload creates new objects; the counters remain."""

    async def work(limiter: Limiter) -> list[bool]:
        before = [admitted(await attempt(limiter, key(rpm=3), model(), now=now())) for _ in range(2)]
        return [*before, admitted(await attempt(limiter, key(rpm=2), model(), now=now()))]

    assert run_with_limiter(work) == [True, True, False]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_admissions_never_exceed_the_limit(run_with_limiter: RunWithLimiter, data: st.DataObject) -> None:
    """Usage never exceeds the reservation, as with `max_output_tokens`."""
    limit = data.draw(st.integers(50, 200))
    caller = key(f"key-{next(FRESH)}", tpm=limit, concurrency=4)

    async def work(limiter: Limiter) -> None:
        used, open_ = 0, []
        for _ in range(data.draw(st.integers(1, 12))):
            tokens = data.draw(st.integers(0, limit))
            outcome = await attempt(limiter, caller, tokens=tokens, now=now())
            reserved = sum(tokens_reserved for _, tokens_reserved in open_)
            assert admitted(outcome) == (used + reserved + tokens <= limit and len(open_) < 4)
            if isinstance(outcome, Reservation):
                open_.append((outcome, tokens))
            if open_ and data.draw(st.booleans()):
                first, reserved = open_.pop(0)
                spent = data.draw(st.integers(0, reserved))
                await settle(limiter, first, spent)
                used += spent

    run_with_limiter(work)
