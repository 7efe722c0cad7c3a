"""The budget for all that the requests of a worker hold."""

from __future__ import annotations

import pytest

from penstock.gateway.memory import COPIES, Holding, MemoryBudget
from penstock.gateway.refusal import Refusal

LIMIT = 100


def holdings(count: int) -> tuple[MemoryBudget, list[Holding]]:
    budget = MemoryBudget(COPIES * LIMIT)
    return budget, [Holding(budget) for _ in range(count)]


def test_body_beyond_the_budget_is_503_until_others_have_ended() -> None:
    budget, (first, second) = holdings(2)
    first.take_body(60)
    with pytest.raises(Refusal) as refused:
        second.take_body(60)
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    second.take_body(40)
    first.release()
    second.take_body(60)
    second.release()
    assert budget.held == 0


def test_single_body_may_exceed_the_budget() -> None:
    budget, (first, second) = holdings(2)
    first.take_body(LIMIT)
    first.take_body(LIMIT)
    with pytest.raises(Refusal):
        second.take_body(1)
    first.release()
    assert budget.held == 0


def test_oldest_reply_always_goes_on_and_the_others_wait_for_it() -> None:
    _, (first, second, third) = holdings(3)
    woken: list[str] = []
    assert first.set_reply(60, lambda: woken.append("first"))
    assert not second.set_reply(60, lambda: woken.append("second"))
    assert not third.set_reply(10, lambda: woken.append("third"))
    assert first.set_reply(500, lambda: woken.append("first"))  # the oldest
    assert woken == []
    first.release()
    assert woken == ["second", "third"]  # 70 of 100


def test_reply_behind_an_oldest_one_goes_on_when_it_becomes_the_oldest() -> None:
    _, (first, second) = holdings(2)
    woken: list[str] = []
    assert first.set_reply(10, lambda: None)
    assert not second.set_reply(500, lambda: woken.append("second"))
    first.release()
    assert woken == ["second"]
    assert second.set_reply(600, lambda: None)


def test_reply_that_shrinks_wakes_others() -> None:
    """A stream that a guardrail has released holds less."""
    budget, (first, second) = holdings(2)
    woken: list[str] = []
    assert first.set_reply(90, lambda: None)
    assert not second.set_reply(20, lambda: woken.append("second"))
    assert first.set_reply(0, lambda: None)
    assert woken == ["second"]
    second.release()
    first.release()
    assert budget.held == 0
