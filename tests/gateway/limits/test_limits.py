"""What callers notice of the limits, the same whether this machine counts or Redis does."""

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
from support.limit_objects import admitted, attempt, key, model, policy

FRESH = itertools.count()
Play = Callable[[Callable[[Limiter], Awaitable[Any]]], Any]


@pytest.fixture(params=["local", "redis"])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a coroutine with a limiter of each kind."""
    url = request.getfixturevalue("redis_server").url if request.param == "redis" else None

    def start(work: Callable[[Limiter], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            limiter = open_limiter(LimitsConfig(redis_url=url), None)
            try:
                return await work(limiter)
            finally:
                assert not limiter.degraded
                await limiter.close()

        return asyncio.run(run())

    return start


def now() -> float:
    return time.time()


async def settled(limiter: Limiter, outcome: Reservation | Refusal, tokens: int) -> None:
    assert isinstance(outcome, Reservation)
    await limiter.settle(outcome, tokens, now())
    # Redis is told in the background
    for task in list(getattr(limiter, "_tasks", ())):
        await task


@pytest.mark.parametrize(("field", "unit"), [("rpm", "minute"), ("rph", "hour"), ("rpd", "day")])
def test_requests_up_to_the_limit_then_429(play: Play, field: str, unit: str) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        return [await attempt(limiter, key(**{field: 2}), now=now()) for _ in range(3)]

    first, second, third = play(work)
    assert admitted(first)
    assert admitted(second)
    assert isinstance(third, Refusal)
    body = orjson.loads(third.body())["error"]
    assert (third.status, body["type"]) == (429, "rate_limit_exceeded")
    assert "request limit of 2" in body["message"]
    assert unit in body["message"]
    assert "policy" not in body


def test_a_second_passes_and_there_is_room_again(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        while True:
            caller = key(f"key-{next(FRESH)}", rps=2)
            began = now()
            burst = [admitted(await attempt(limiter, caller, now=now())) for _ in range(3)]
            if now() - began < 0.9:
                break
            # the machine was busy elsewhere for most of the second: again, with another key
        await asyncio.sleep(1.05)
        return [*burst, admitted(await attempt(limiter, caller, now=now()))]

    assert play(work) == [True, True, False, True]


def test_a_limit_of_nothing_lets_nobody_in(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        nothing: list[dict[str, int]] = [{"rpm": 0}, {"concurrency": 0}, {"tpm": 0}, {"tpd": 0}]
        return [admitted(await attempt(limiter, key(**limits), tokens=50, now=now())) for limits in nothing]

    assert play(work) == [False] * 4


def test_no_limits_no_headers(play: Play) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        outcome = await attempt(limiter, key(), tokens=10**9, now=now())
        await settled(limiter, outcome, 5)
        return outcome

    outcome = play(work)
    assert isinstance(outcome, Reservation)
    assert outcome.headers == ()


def test_headers_tell_of_the_keys_own_limits_and_of_those_only(play: Play) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        caller = key(rpm=10, rpd=4, tpm=1000, concurrency=3)
        wanted = model(rpm=1, tpm=5000)
        return await attempt(limiter, caller, wanted, [policy(max_requests=1)], tokens=300, now=now())

    outcome = play(work)
    assert isinstance(outcome, Reservation)
    headers = dict(outcome.headers)
    # a window counts for 31/32 of its length at least
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


def test_a_refusal_says_when_to_come_back_and_carries_the_headers(play: Play) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        return [await attempt(limiter, key(rpm=1), now=now()) for _ in range(2)]

    refusal = play(work)[1]
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.retry_after, int)
    assert 30 < refusal.retry_after <= 60
    assert dict(refusal.headers)["x-ratelimit-remaining-requests"] == "0"


def test_tokens_are_reserved_and_the_difference_is_given_back(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=1000)
        first = await attempt(limiter, caller, tokens=900, now=now())
        outcomes = [admitted(await attempt(limiter, caller, tokens=200, now=now()))]
        await settled(limiter, first, 100)
        outcomes.append(admitted(await attempt(limiter, caller, tokens=900, now=now())))
        outcomes.append(admitted(await attempt(limiter, caller, tokens=1, now=now())))
        return outcomes

    assert play(work) == [False, True, False]


def test_settling_twice_gives_back_once(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=100, concurrency=1)
        first = await attempt(limiter, caller, tokens=60, now=now())
        await settled(limiter, first, 50)
        await settled(limiter, first, 0)
        second = await attempt(limiter, caller, tokens=50, now=now())
        return [admitted(second), admitted(await attempt(limiter, caller, tokens=0, now=now()))]

    assert play(work) == [True, False]


def test_more_tokens_than_were_reserved_count_as_well(play: Play) -> None:
    async def work(limiter: Limiter) -> Reservation | Refusal:
        caller = key(tpm=100)
        await settled(limiter, await attempt(limiter, caller, tokens=10, now=now()), 250)
        return await attempt(limiter, caller, tokens=1, now=now())

    outcome = play(work)
    assert isinstance(outcome, Refusal)
    assert "token limit of 100 per minute" in outcome.message


def test_a_request_that_reserves_more_than_the_limit_gets_a_free_window_to_itself(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        caller = key(tpm=100)
        first = await attempt(limiter, caller, tokens=5000, now=now())
        second = await attempt(limiter, caller, tokens=1, now=now())
        await settled(limiter, first, 30)
        third = await attempt(limiter, caller, tokens=70, now=now())
        return [admitted(first), admitted(second), admitted(third)]

    assert play(work) == [True, False, True]


def test_concurrency_is_freed_at_the_end_and_its_refusal_promises_no_time(play: Play) -> None:
    async def work(limiter: Limiter) -> tuple[Reservation | Refusal, bool]:
        caller = key(concurrency=2)
        first, _, third = [await attempt(limiter, caller, now=now()) for _ in range(3)]
        await settled(limiter, first, 0)
        return third, admitted(await attempt(limiter, caller, now=now()))

    refusal, later = play(work)
    assert isinstance(refusal, Refusal)
    assert (refusal.type, refusal.retry_after) == ("rate_limit_exceeded", None)
    assert "2 concurrent" in refusal.message
    assert dict(refusal.headers)["x-ratelimit-remaining-concurrent"] == "0"
    assert later


def test_a_refused_request_leaves_no_trace_in_any_bucket(play: Play) -> None:
    async def work(limiter: Limiter) -> tuple[list[bool], Reservation | Refusal]:
        alice, bob = key("alice", rpm=5, tpm=100, concurrency=5), key("bob", rpm=5)
        wanted, other = model(rpm=1), model("other")
        outcomes = [admitted(await attempt(limiter, bob, wanted, now=now()))]
        # the model is full: alice's own limits must not notice
        outcomes += [admitted(await attempt(limiter, alice, wanted, tokens=60, now=now())) for _ in range(10)]
        return outcomes, await attempt(limiter, alice, other, tokens=60, now=now())

    outcomes, last = play(work)
    assert outcomes == [True] + [False] * 10
    assert isinstance(last, Reservation)
    headers = dict(last.headers)
    assert headers["x-ratelimit-remaining-requests"] == "4"
    assert headers["x-ratelimit-remaining-tokens"] == "40"
    assert headers["x-ratelimit-remaining-concurrent"] == "4"


def test_keys_do_not_share_their_limits_and_a_models_limit_is_shared_by_keys(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        alice, bob = key("alice", rpm=1), key("bob", rpm=1)
        limited = model("limited", rpm=1)
        return [
            admitted(await attempt(limiter, alice, now=now())),
            admitted(await attempt(limiter, bob, limited, now=now())),
            admitted(await attempt(limiter, key("carol"), limited, now=now())),
        ]

    assert play(work) == [True, True, False]


def test_a_target_of_a_group_is_held_to_its_own_limits(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        target = model("target", rpm=1)
        await limiter.admit_target(target, 0, now())
        with pytest.raises(Refusal) as refused:
            await limiter.admit_target(target, 0, now())
        return [refused.value.headers == (), "of this model" in refused.value.message]

    assert play(work) == [True, True]


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
def test_a_policy_has_a_bucket_for_each_of_its_scope(
    play: Play, fields: dict[str, str], second: dict[str, str], shared: bool
) -> None:
    async def work(limiter: Limiter) -> list[Reservation | Refusal]:
        policies = (policy(max_requests=1, **fields),)
        wanted = model()
        return [
            await attempt(limiter, key("first", **ALICE), wanted, policies, now=now()),
            await attempt(limiter, key("second", **second), wanted, policies, now=now()),
        ]

    first, last = play(work)
    assert admitted(first)
    assert admitted(last) != shared
    if isinstance(last, Refusal):
        assert last.policy == {"id": "id-fair", "name": "fair"}
        assert isinstance(last.retry_after, int)
        assert 30 < last.retry_after <= 60


def test_policies_limit_tokens_over_any_window(play: Play) -> None:
    async def work(limiter: Limiter) -> list[bool]:
        policies = (policy(window="hour", max_tokens=100),)
        wanted, caller = model(), key()
        return [admitted(await attempt(limiter, caller, wanted, policies, 60, now())) for _ in range(2)]

    assert play(work) == [True, False]


def test_a_new_limit_for_the_same_key_goes_on_with_what_was_counted(play: Play) -> None:
    """A reload makes new objects; the counters stay."""

    async def work(limiter: Limiter) -> list[bool]:
        before = [admitted(await attempt(limiter, key(rpm=3), model(), now=now())) for _ in range(2)]
        return [*before, admitted(await attempt(limiter, key(rpm=2), model(), now=now()))]

    assert play(work) == [True, True, False]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_reserved_and_settled_no_more_than_the_limit_is_used(play: Play, data: st.DataObject) -> None:
    """Real use never above what was reserved, as when `max_output_tokens` is honoured."""
    limit = data.draw(st.integers(50, 200))
    caller = key(f"key-{next(FRESH)}", tpm=limit, concurrency=4)

    async def work(limiter: Limiter) -> None:
        used, open_ = 0, []
        for _ in range(data.draw(st.integers(1, 12))):
            tokens = data.draw(st.integers(0, limit))
            outcome = await attempt(limiter, caller, tokens=tokens, now=now())
            reserved = sum(each for _, each in open_)
            assert admitted(outcome) == (used + reserved + tokens <= limit and len(open_) < 4)
            if isinstance(outcome, Reservation):
                open_.append((outcome, tokens))
            if open_ and data.draw(st.booleans()):
                first, reserved = open_.pop(0)
                spent = data.draw(st.integers(0, reserved))
                await settled(limiter, first, spent)
                used += spent

    play(work)
