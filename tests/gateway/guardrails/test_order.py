"""Chats that switch between fields: window mode delivers each field complete, in order, and masked as in buffer mode."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.guardrail_streams import (
    GuardsHarness,
    Outcome,
    chat_chunks,
    chat_text,
    event,
    guards,
    keyword,
    pii,
    run,
    wire,
)

MODES: tuple[Literal["buffer", "window"], ...] = ("buffer", "window")


def fields(payloads: list[Any]) -> dict[Any, str]:
    """Return the text of each field of each choice, as a client accumulates it."""
    by_field: dict[Any, str] = {}
    for payload in payloads:
        for choice in payload["choices"]:
            delta = choice["delta"]
            texts = {name: text for name, text in delta.items() if isinstance(text, str)}
            for call in delta.get("tool_calls", ()):
                texts |= {(call["index"], name): text for name, text in call["function"].items()}
            for name, text in texts.items():
                if text:
                    field = choice["index"], name
                    by_field[field] = by_field.get(field, "") + text
    return by_field


def choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": list(choices)}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more}}]}


def test_clean_stream_in_one_read_is_unchanged() -> None:
    deltas = [{"reasoning_content": "Let me look it "}, {"reasoning_content": "up"}, "Done.", call(0, "so p"), "Pro"]
    body = wire(chat_chunks(deltas), done=True)
    guard = guards(keyword("Project Nightjar"), mode="window").stream("chat")
    assert run(guard, [body]).body == body


def test_detached_piece_does_not_overtake_held_events() -> None:
    payloads = [
        chunk(choice(1, {"content": "Hello. "})),
        chunk(choice(1, {"content": "Pro"})),
        chunk(choice(0, call(0, "so ", name="look"))),
        chunk(choice(0, call(0, "the p"))),
        chunk(choice(0, {"content": "Well. "})),
        chunk(choice(0, call(0, "lain"))),
        chunk(choice(1, {"content": "gress"}, "stop"), choice(0, {}, "stop")),
    ]
    outcome = run(guards(keyword("Project Nightjar"), mode="window").stream("chat"), map(event, payloads))
    assert fields(outcome.payloads) == fields(payloads)
    assert outcome.payloads[:3] == payloads[:3]  # the call starts with its name


def test_stream_in_one_read_is_masked_per_field() -> None:
    deltas = [
        "Hi there. ",
        "john.doe@example.com",
        {"reasoning_content": "hm a.b@c"},
        " bye",
        {"reasoning_content": ".de"},
    ]
    outcome = run(guards(pii("email"), mode="window").stream("chat"), [wire(chat_chunks(deltas))])
    assert chat_text(outcome.payloads) == "Hi there. [EMAIL_REDACTED] bye"
    assert chat_text(outcome.payloads, "reasoning_content") == "hm [EMAIL_REDACTED]"


FRAGMENTS = st.sampled_from(
    [
        *(
            "just ",
            "plain ",
            "pro",
            "project ",
            "night ",
            "p",
            "Project Night",
            "code-",
            "12 ",
            "34",
            " on",
            "\n",
            "ü🙂",
        ),
        *("john.doe@example.com ", "a.b@", "c.de, ", "4111 1111 ", "1111 1111 ", '{"a":"', "\\u0040", "\\", '"}'),
    ]
)
TEXTS = st.lists(FRAGMENTS, min_size=1, max_size=3).map("".join)
DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"reasoning_content": text}, TEXTS),
    st.builds(call, st.integers(0, 1), TEXTS),
    st.builds(lambda first, last: {"reasoning_content": first, "content": last}, TEXTS, TEXTS),
)
CHUNKS = st.one_of(
    st.builds(lambda index, delta: chunk(choice(index, delta)), st.integers(0, 1), DELTAS),
    st.builds(lambda first, last: chunk(choice(0, first), choice(1, last)), DELTAS, DELTAS),
)


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    payloads = draw(st.lists(CHUNKS, min_size=1, max_size=16))
    return [*payloads, chunk(choice(0, {}, "stop")), chunk(choice(1, {}, "stop"))]


GUARDS: dict[str, Any] = {
    "literal": ([keyword("Project Nightjar")], {}),
    "regex": ([keyword("Project Nightjar", regexes=["code-[0-9]{4}"])], {"words": 9}),
    "masks": ([pii("email", "bank_card")], {}),
    "all": ([keyword("project plain"), pii("email", "bank_card")], {}),
}


def compile_guards(name: str, mode: Literal["buffer", "window"]) -> GuardsHarness:
    specs, max_lengths = GUARDS[name]
    return guards(*specs, mode=mode, max_lengths=max_lengths)


@pytest.mark.parametrize("name", GUARDS)
def test_window_delivers_each_field_as_buffer_does(name: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink], database=None)
    @given(chats(), st.lists(st.integers(1, 20), min_size=1, max_size=4))
    def check(payloads: list[dict[str, Any]], sizes: list[int]) -> None:
        reads: list[bytes] = []
        rest = payloads
        while rest:
            size = sizes[len(reads) % len(sizes)]
            reads.append(wire(rest[:size]))
            rest = rest[size:]
        outcomes: list[Outcome] = [run(compile_guards(name, mode).stream("chat"), reads) for mode in MODES]
        buffered, window = outcomes
        assert (buffered.blocked is None) == (window.blocked is None)
        if window.blocked is None:
            assert fields(window.payloads) == fields(buffered.payloads)

    check()
