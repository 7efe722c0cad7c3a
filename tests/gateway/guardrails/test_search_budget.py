"""Inspection timeouts: all searches of a request, a reply or a stream share one budget."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any, Literal

import pytest

from penstock.gateway.guardrails import SearchBudgets, finders
from penstock.gateway.guardrails.offload import run_offloaded
from penstock.gateway.guardrails.search_budget import InspectionTimeout, SearchBudget
from penstock.gateway.routes import BY_NAME
from support.guardrail_streams import chat_chunks, event, guards, keyword, pii, run, wire

SLOW = r"(?:[a-z]+ )+QQQ"
TEXT = "some words here " * 60
"""A search for SLOW in it takes about 15 ms."""


def body(count: int) -> bytes:
    return json.dumps({"input": [{"role": "user", "content": TEXT} for _ in range(count)]}).encode()


def test_searches_of_one_request_share_a_budget() -> None:
    """Each search takes a fraction of the budget."""
    compiled = guards(keyword(regexes=[SLOW])).compiled
    inspection = compiled.inspect_request(BY_NAME["responses"], body(1500), SearchBudgets(0.2))
    assert (inspection.blocked_by, inspection.timed_out) == ("words", True)
    assert [(hit.guardrail, hit.action, hit.count) for hit in inspection.hits] == [("words", "timed_out", 1)]


def test_matches_are_charged_to_the_budget() -> None:
    data = json.dumps({"input": "x " * 200_000}).encode()
    spec = keyword(regexes=["x"], enforcement="monitor")
    assert [
        hit.action
        for hit in guards(spec).compiled.inspect_request(BY_NAME["responses"], data, SearchBudgets(0.02)).hits
    ] == [
        "timed_out",
        "would_block",
    ]


def test_many_masks_are_charged_to_the_budget() -> None:
    """A mask costs more than the search for it: 57 MiB of addresses took more than a minute."""
    data = json.dumps({"input": "a@b.co " * 4000}).encode()
    inspection = guards(pii("email")).compiled.inspect_request(BY_NAME["responses"], data, SearchBudgets(0.01))
    assert inspection.timed_out


@pytest.mark.parametrize(
    ("text", "bytes_per_character"),
    [("слова " * 20_000 + "а@b.co", 35), ("\\n\\u0061 word " * 10_000 + "x@b.co", 22)],
)
def test_inspection_of_a_long_text_needs_little_memory(text: str, bytes_per_character: int) -> None:
    compiled = guards(pii("email")).compiled
    data = json.dumps({"input": text}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        inspection = compiled.inspect_request(BY_NAME["responses"], data, SearchBudgets(60.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [hit.action for hit in inspection.hits] == ["masked"]
    assert peak < bytes_per_character * len(text)


def test_long_text_does_not_time_out() -> None:
    data = json.dumps({"input": "some words here " * 100_000}).encode()
    inspection = guards(keyword(regexes=["(?:QQQ|ZZZ)[a-z]+", "q{3}"])).compiled.inspect_request(
        BY_NAME["responses"], data, SearchBudgets(0.001)
    )
    assert inspection.blocked_by is None


def test_monitoring_has_its_own_budget_and_never_blocks() -> None:
    compiled = guards(
        keyword(regexes=[SLOW], name="monitor", enforcement="monitor"), keyword(regexes=["zz[a-z]+y"])
    ).compiled
    inspection = compiled.inspect_request(BY_NAME["responses"], body(100), SearchBudgets(0.05))
    assert inspection.blocked_by is None
    assert [(hit.guardrail, hit.action) for hit in inspection.hits] == [("monitor", "timed_out")]


def test_monitoring_passes_whichever_rule_times_out() -> None:
    """The first rule spends the whole budget; the second would have matched."""
    specs = [
        keyword(regexes=[SLOW], name="slow", enforcement="monitor"),
        pii("email", name="mail", enforcement="monitor"),
    ]
    text = "x@y.example " + TEXT * 100
    data = json.dumps({"input": text}).encode()
    inspection = guards(*specs).compiled.inspect_request(BY_NAME["responses"], data, SearchBudgets(0.02))
    assert (inspection.body, inspection.blocked_by) == (data, None)
    assert [(hit.guardrail, hit.action) for hit in inspection.hits] == [("slow", "timed_out"), ("mail", "timed_out")]
    guard = guards(*specs, max_inspection_ms=80).stream("responses")
    body = wire([{"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": text}])
    assert run(guard, [body]).body.startswith(body)
    assert guard is not None
    assert [(hit.guardrail, hit.action) for hit in guard.hits] == [("slow", "timed_out"), ("mail", "timed_out")]


HOSTILE = {
    "alternatives": ("(?:a|aa)" * 30 + "[cd]", "a" * 60),
    "a back-reference": (r"([ab]*)\1[cd]", "a" * 3000),
    "a named back-reference": (r"(?<x>[ab]*)(?P=x)[cd]", "a" * 3000),
}


@pytest.mark.parametrize(("pattern", "text"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_short_text_times_out(pattern: str, text: str) -> None:
    """The patterns have no quantifier or a single one."""
    data = json.dumps({"input": text}).encode()
    inspection = guards(keyword(regexes=[pattern])).compiled.inspect_request(
        BY_NAME["responses"], data, SearchBudgets(0.05)
    )
    assert (inspection.blocked_by, inspection.timed_out) == ("words", True)


def test_inspection_that_is_not_final_raises_on_timeout() -> None:
    data = body(50)
    compiled = guards(pii("email"), keyword(regexes=[SLOW], name="monitor", enforcement="monitor")).compiled
    with pytest.raises(InspectionTimeout):
        compiled.inspect_request(BY_NAME["responses"], data, SearchBudgets(0.01, final=False))


def test_slow_inspection_does_not_block_the_event_loop() -> None:
    async def inspect_while_ticking() -> tuple[Any, int]:
        compiled = guards(keyword(regexes=[SLOW])).compiled
        task = asyncio.create_task(
            run_offloaded(
                20_000, lambda budgets: compiled.inspect_request(BY_NAME["responses"], body(10), budgets), 0.5
            )
        )
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return task.result(), turns

    inspection, turns = asyncio.run(inspect_while_ticking())
    assert inspection.blocked_by is None
    assert turns > 5


@pytest.mark.parametrize("mode", ["buffer", "window"])
def test_searches_of_one_stream_share_a_budget(mode: Literal["buffer", "window"]) -> None:
    harness = guards(keyword(regexes=[SLOW]), mode=mode, max_lengths={"words": 1000}, max_inspection_ms=100)
    guard = harness.stream("chat")
    assert guard is not None
    outcome = run(guard, [event(payload) for payload in chat_chunks([TEXT] * 100)])
    assert outcome.blocked is not None
    assert (outcome.blocked.guardrail, outcome.blocked.timed_out) == ("words", True)
    assert [hit.action for hit in guard.hits] == ["timed_out"]
    assert b"inspection_timeout" in guard.block_event(outcome.blocked)
    assert b"content policy" not in guard.block_event(outcome.blocked)


def test_long_stream_does_not_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search takes 4 µs, whatever its length; there is one per pattern and event."""
    clock = iter(range(10**9))
    monkeypatch.setattr(finders, "thread_time", lambda: next(clock) * 4e-6)
    time_limit = SearchBudget.time_limit
    # The search itself measures CPU time, which may jump on a busy machine.
    monkeypatch.setattr(SearchBudget, "time_limit", lambda budget, size: time_limit(budget, size) + 60)
    patterns = [rf"\b{first}{second}\d{{2}}-\d{{2}}\b" for first in "abcde" for second in "xy"]
    harness = guards(keyword(regexes=patterns), mode="window", max_lengths={"words": 8}, max_inspection_ms=100)
    events = [event(payload) for payload in chat_chunks(["word "] * 3000)]
    assert run(harness.stream("chat"), events).body == b"".join(events)


def test_monitored_stream_passes_after_a_timeout() -> None:
    spec = keyword(regexes=[SLOW], enforcement="monitor")
    guard = guards(spec, max_lengths={"words": 1000}, max_inspection_ms=100).stream("chat")
    events = [event(payload) for payload in chat_chunks([TEXT] * 100)]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [hit.action for hit in guard.hits] == ["timed_out"]
