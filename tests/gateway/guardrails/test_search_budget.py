"""Inspections that take too long: one budget for all searches of a request, a reply or a stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest

from penstock.gateway.guardrails import SearchBudgets, finders
from penstock.gateway.guardrails.offload import paced
from penstock.gateway.guardrails.search_budget import Undecided
from support.guardrail_streams import chat_chunks, event, guards, keyword, pii, run, wire

SLOW = r"(?:[a-z]+ )+QQQ"
TEXT = "some words here " * 60
"""A search for the pattern takes some 15 ms on it."""


def body(count: int) -> bytes:
    return json.dumps({"input": [{"role": "user", "content": TEXT} for _ in range(count)]}).encode()


def test_searches_of_one_request_are_summed() -> None:
    """Each of them takes a fraction of the budget."""
    made = guards(keyword(regexes=[SLOW])).made
    found = made.request(body(1500), SearchBudgets(0.2))
    assert (found.blocked_by, found.timed_out) == ("words", True)
    assert [(hit.guardrail, hit.action, hit.count) for hit in found.hits] == [("words", "timed_out", 1)]


def test_matches_are_in_the_budget_as_well() -> None:
    data = json.dumps({"input": "x " * 200_000}).encode()
    spec = keyword(regexes=["x"], enforcement="monitor")
    assert [hit.action for hit in guards(spec).made.request(data, SearchBudgets(0.02)).hits] == [
        "timed_out",
        "would_block",
    ]


def test_a_long_text_is_no_reason() -> None:
    data = json.dumps({"input": "some words here " * 100_000}).encode()
    found = guards(keyword(regexes=["(?:QQQ|ZZZ)[a-z]+", "q{3}"])).made.request(data, SearchBudgets(0.001))
    assert found.blocked_by is None


def test_what_only_watches_refuses_nothing_and_takes_no_time_of_the_others() -> None:
    made = guards(keyword(regexes=[SLOW], name="watch", enforcement="monitor"), keyword(regexes=["zz[a-z]+y"])).made
    found = made.request(body(100), SearchBudgets(0.05))
    assert found.blocked_by is None
    assert [(hit.guardrail, hit.action) for hit in found.hits] == [("watch", "timed_out")]


def test_what_only_watches_passes_whichever_rule_the_time_ends_in() -> None:
    """The first spends all of it; the second would have found something."""
    specs = [
        keyword(regexes=[SLOW], name="slow", enforcement="monitor"),
        pii("email", name="mail", enforcement="monitor"),
    ]
    said = "x@y.example " + TEXT * 100
    data = json.dumps({"input": said}).encode()
    found = guards(*specs).made.request(data, SearchBudgets(0.02))
    assert (found.body, found.blocked_by) == (data, None)
    assert [(hit.guardrail, hit.action) for hit in found.hits] == [("slow", "timed_out"), ("mail", "timed_out")]
    guard = guards(*specs, max_inspection_ms=80).stream("responses")
    body = wire([{"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": said}])
    assert run(guard, [body]).body.startswith(body)
    assert guard is not None
    assert [(hit.guardrail, hit.action) for hit in guard.hits] == [("slow", "timed_out"), ("mail", "timed_out")]


HARD = {
    "alternatives": ("(?:a|aa)" * 30 + "[cd]", "a" * 60),
    "a group again": (r"([ab]*)\1[cd]", "a" * 3000),
    "a named group again": (r"(?<x>[ab]*)(?P=x)[cd]", "a" * 3000),
}


@pytest.mark.parametrize(("pattern", "text"), HARD.values(), ids=HARD)
def test_a_short_text_can_be_hard_too(pattern: str, text: str) -> None:
    """Without a repetition, or with a single one."""
    data = json.dumps({"input": text}).encode()
    found = guards(keyword(regexes=[pattern])).made.request(data, SearchBudgets(0.05))
    assert (found.blocked_by, found.timed_out) == ("words", True)


def test_one_that_can_be_begun_again_changes_nothing() -> None:
    data = body(50)
    made = guards(pii("email"), keyword(regexes=[SLOW], name="watch", enforcement="monitor")).made
    with pytest.raises(Undecided):
        made.request(data, SearchBudgets(0.01, last=False))


def test_what_is_slow_leaves_the_loop() -> None:
    async def look() -> tuple[Any, int]:
        made = guards(keyword(regexes=[SLOW])).made
        task = asyncio.create_task(paced(20_000, lambda patience: made.request(body(10), patience), 0.5))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return task.result(), turns

    found, turns = asyncio.run(look())
    assert found.blocked_by is None
    assert turns > 5


@pytest.mark.parametrize("mode", ["buffer", "window"])
def test_a_stream_has_one_budget(mode: Literal["buffer", "window"]) -> None:
    made = guards(keyword(regexes=[SLOW]), mode=mode, max_lengths={"words": 1000}, max_inspection_ms=100)
    guard = made.stream("chat")
    assert guard is not None
    outcome = run(guard, [event(payload) for payload in chat_chunks([TEXT] * 100)])
    assert outcome.blocked is not None
    assert (outcome.blocked.guardrail, outcome.blocked.timed_out) == ("words", True)
    assert [hit.action for hit in guard.hits] == ["timed_out"]
    assert b"inspection_timeout" in guard.late_block(outcome.blocked)
    assert b"content policy" not in guard.late_block(outcome.blocked)


def test_a_long_stream_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search takes 4 µs, whatever it reads; there is one for each pattern and event."""
    clock = iter(range(10**9))
    monkeypatch.setattr(finders, "thread_time", lambda: next(clock) * 4e-6)
    patterns = [rf"\b{first}{second}\d{{2}}-\d{{2}}\b" for first in "abcde" for second in "xy"]
    made = guards(keyword(regexes=patterns), mode="window", max_lengths={"words": 8}, max_inspection_ms=100)
    events = [event(payload) for payload in chat_chunks(["word "] * 3000)]
    assert run(made.stream("chat"), events).body == b"".join(events)


def test_a_watched_stream_passes_when_its_budget_is_spent() -> None:
    spec = keyword(regexes=[SLOW], enforcement="monitor")
    guard = guards(spec, max_lengths={"words": 1000}, max_inspection_ms=100).stream("chat")
    events = [event(payload) for payload in chat_chunks([TEXT] * 100)]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [hit.action for hit in guard.hits] == ["timed_out"]
