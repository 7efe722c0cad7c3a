"""Window mode: when events leave, and how much is ever held."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from penstock.gateway.guardrails import channels
from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from support.guardrail_streams import (
    Framed,
    chat_chunks,
    chat_text,
    delta_text,
    event,
    guards,
    keyword,
    pii,
    response_events,
    run,
    wire,
)


def left_after(payloads: list[Any], *specs: GuardrailSpec, route: Any = "chat") -> list[int]:
    """For each event the number of events that have left when it was fed, and at the end."""
    guard = Framed(guards(*specs, mode="window").stream(route))
    counts: list[int] = []
    total = 0
    for payload in payloads:
        total += guard.feed(event(payload)).count(b"\n\n")
        counts.append(total)
    return [*counts, total + guard.finish().count(b"\n\n")]


def chat(*deltas: Any) -> list[Any]:
    return chat_chunks(deltas)


def test_events_without_text_wait_for_the_first_text() -> None:
    payloads = response_events(["Hello"])
    assert left_after(payloads, keyword("zzz"), route="responses")[:5] == [0, 0, 0, 4, 5]


def test_a_stream_without_text_is_released_at_its_end() -> None:
    payloads = [response_events([])[0], {"type": "response.failed", "response": {"id": "r", "output": []}}]
    assert left_after(payloads, keyword("zzz"), route="responses") == [0, 0, 2]


def test_text_leaves_with_its_own_event_unless_a_literal_could_begin_in_it() -> None:
    assert left_after(chat("clean ", "text", " se", "t", " s", "ecre", "t!"[1:]), keyword("secret")) == [
        0,
        2,
        3,
        3,
        5,
        5,
        5,
        8,
        9,
        9,
    ]


def test_what_is_held_is_what_a_literal_could_begin_with_and_no_more() -> None:
    guard = Framed(guards(keyword("aaab", "xyz" * 100), mode="window").stream("completions"))
    for _ in range(2_000):
        guard.feed(event({"choices": [{"index": 0, "text": "a"}]}))
    assert guard.held_bytes == 3 * len(event({"choices": [{"index": 0, "text": "a"}]}))


def test_a_declared_length_bounds_what_is_held() -> None:
    guard = Framed(
        guards(keyword(regexes=["q[a-z]*q"]), mode="window", max_lengths={"words": 20}).stream("completions")
    )
    one = event({"choices": [{"index": 0, "text": "a"}]})
    for _ in range(500):
        guard.feed(one)
    assert guard.held_bytes <= 22 * len(one)


@pytest.mark.parametrize(
    "detector", ["email", "china_mobile", "bank_card", "us_ssn", "ip_address", "api_key", "jwt", "private_key"]
)
def test_prose_is_held_for_one_word_at_most(detector: str) -> None:
    words = ["It", " was", " 1984", ",", " the", " task", " --", " see", " a", "@", "b", " or", " 12", ":", "30", "."]
    counts = left_after(chat(*words), pii(detector))
    assert counts[-1] == len(words) + 2
    assert all(fed + 1 - left <= 4 for fed, left in enumerate(counts[2:-1], start=2))


def test_a_text_that_has_ended_is_held_for_nothing() -> None:
    payloads = response_events(["the se"])
    assert left_after(payloads, keyword("secret"), route="responses")[3:5] == [0, 5]
    ended = [*chat("the se"), *chat_chunks([], finish=False)]
    assert left_after(ended, keyword("secret"))[2] == 3
    named = chat(tool(0, "se", ""), tool(0, None, "{"), tool(0, None, "}"))
    assert left_after(named, keyword("secret")) == [0, 0, 3, 4, 5, 5]


def tool(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function}]}


SWITCHES: dict[str, tuple[list[Any], list[int]]] = {
    "reasoning, then content": ([{"reasoning_content": "so se"}, "Hello", "!"], [0, 0, 3, 4, 6, 6]),
    "one tool, then another": ([tool(0, None, "se"), tool(1, None, "x"), tool(1, None, "y")], [0, 0, 3, 4, 6, 6]),
    "and back": (
        [tool(0, None, "se"), tool(1, None, "x"), tool(0, None, "em"), tool(1, None, "y")],
        [0, 0, 3, 5, 6, 7, 7],
    ),
}


@pytest.mark.parametrize(("deltas", "counts"), SWITCHES.values(), ids=SWITCHES)
def test_nothing_waits_for_a_field_that_the_stream_has_moved_away_from(deltas: list[Any], counts: list[int]) -> None:
    """Its end that is not decided leaves in an event of its own, when the field goes on or the choice ends."""
    payloads = chat(*deltas)
    assert left_after(payloads, keyword("secret")) == counts
    outcome = run(guards(keyword("secret"), mode="window").stream("chat"), [event(payload) for payload in payloads])
    assert accumulated(outcome.payloads) == accumulated(payloads)
    assert all(payload["id"] == "chatcmpl-1" for payload in outcome.payloads)


def accumulated(payloads: list[Any]) -> dict[Any, str]:
    """The text of each field, as a client puts it together."""
    found: dict[Any, str] = {}
    for payload in payloads:
        for choice in payload["choices"]:
            delta = choice["delta"]
            fields = {name: delta[name] for name in ("content", "reasoning_content") if delta.get(name)}
            fields |= {call["index"]: call["function"]["arguments"] for call in delta.get("tool_calls", ())}
            for name, text in fields.items():
                found[name] = found.get(name, "") + text
    return found


def test_a_field_that_goes_on_after_another_is_still_one_text() -> None:
    resumed = chat({"reasoning_content": "sec"}, "Hello", {"reasoning_content": "ret"})
    outcome = run(guards(keyword("secret"), mode="window").stream("chat"), [event(p) for p in resumed])
    assert outcome.blocked is not None
    assert b"sec" not in outcome.body
    calls = chat(tool(0, None, "sec"), tool(1, None, "x"), tool(0, None, "ret"))
    outcome = run(guards(keyword("secret"), mode="window").stream("chat"), [event(p) for p in calls])
    assert outcome.blocked is not None
    assert b"sec" not in outcome.body
    mail = chat({"reasoning_content": "joe@exam"}, "Hello", {"reasoning_content": "ple.com x"})
    masked = run(guards(pii("email"), mode="window").stream("chat"), [event(p) for p in mail])
    assert chat_text(masked.payloads, "reasoning_content") == "[EMAIL_REDACTED] x"
    done = chat({"reasoning_content": "joe@example.com"}, "Hello", {"reasoning_content": " and jane@example.com"})
    fine = run(guards(pii("email"), mode="window").stream("chat"), [event(p) for p in done])
    assert fine.blocked is None
    assert chat_text(fine.payloads, "reasoning_content") == "[EMAIL_REDACTED] and [EMAIL_REDACTED]"


def test_pieces_that_are_set_aside_are_bounded() -> None:
    deltas = [piece for number in range(200) for piece in (tool(number, None, "x" * 200 + " se"),)]
    guard = guards(keyword("secret"), mode="window", max_buffer_bytes=20_000).stream("chat")
    outcome = run(guard, [event(payload) for payload in chat("Hello. ", *deltas)])
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None


@pytest.mark.parametrize(
    ("pattern", "length", "deltas", "blocked"),
    [
        ("ab$", 2, ["ab\n", "x"], False),
        ("ab$", 2, ["ab", "\n"], True),
        ("(?m)ab$", 2, ["ab", "\n", "x"], True),
        (r"ab\b", 2, ["ab", "c"], False),
        (r"ab\b", 2, ["ab", " c"], True),
        (r"\bab", 2, ["x" * 900, "ab  "], False),
        ("^ab", 2, ["x" * 900, "ab  "], False),
        ("(?<=b1-a)b", 5, ["x" * 2000 + "b1-", "a", "b"], True),
        ("(?<=b1-a)b", 5, [*("x" * 2000 + "b1-"), "a", "b"], True),
        ("(?<=b1-a)b", 5, ["x" * 2000 + "b1-abzzzzz", "z"], True),
        ("a(?!bc)", 3, ["a", "b", "c"], False),
        ("a(?!bc)", 3, ["a", "b", "d"], True),
        ("a+b", 3, ["a"] * 30 + ["b"], True),
    ],
)
def test_what_surrounds_a_match_counts_across_events(
    pattern: str, length: int, deltas: list[str], blocked: bool
) -> None:
    guard = guards(keyword(regexes=[pattern]), mode="window", max_lengths={"words": length}).stream("chat")
    assert (run(guard, [event(payload) for payload in chat(*deltas)]).blocked is not None) == blocked


def test_a_match_longer_than_declared_is_masked_whole_while_it_grows() -> None:
    spec = pii(patterns=[Pattern(kind="regex", value="EMP-[0-9]+", name="e")])
    guard = guards(spec, mode="window", max_lengths={"private": 6}).stream("chat")
    outcome = run(guard, [event(p) for p in chat("EMP-", *"1234567890" * 4, " ok")])
    assert chat_text(outcome.payloads) == "[E_REDACTED] ok"


def test_a_number_is_masked_with_the_sign_before_it() -> None:
    outcome = run(
        guards(pii("china_mobile"), mode="window").stream("chat"),
        [event(p) for p in chat("call +", "86 13800138000", " x")],
    )
    assert chat_text(outcome.payloads) == "call [CHINA_MOBILE_REDACTED] x"


def test_a_late_block_leaves_what_was_clean_and_nothing_else() -> None:
    payloads = response_events(["Hello there. ", "The sec", "ret is out"])
    guard = guards(keyword("secret"), mode="window").stream("responses")
    outcome = run(guard, [event(payload) for payload in payloads])
    assert outcome.blocked is not None
    assert delta_text(outcome.payloads) == "Hello there. "


def test_a_last_event_that_says_something_else_is_masked_by_itself() -> None:
    payloads = response_events(["clean"], text="joe@example.com")
    outcome = run(guards(pii("email"), mode="window").stream("responses"), [event(p) for p in payloads])
    assert outcome.payloads[-1]["response"]["output"][0]["content"][0]["text"] == "[EMAIL_REDACTED]"
    assert outcome.body.startswith(wire(payloads[:4]))


def test_more_undecided_text_than_may_be_held_is_a_block_without_a_name() -> None:
    guard = guards(pii("private_key"), mode="window", max_buffer_bytes=20_000).stream("chat")
    outcome = run(guard, [event(p) for p in chat("-----BEGIN PRIVATE KEY-----\n", *["MIIE"] * 1000)])
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None
    assert outcome.body == b""


def test_large_events_without_text_are_let_go() -> None:
    payloads = response_events(["Hello FORB", "IDDEN"])
    payloads[0]["response"]["instructions"] = "x" * 300_000
    guard = guards(keyword("forbidden"), mode="window").stream("responses")
    outcome = run(guard, [event(payload) for payload in payloads])
    assert outcome.blocked is not None
    assert outcome.body == wire(payloads[:3])


def test_one_large_delta_is_no_overflow() -> None:
    body = wire(response_events(["x " * 300_000]))
    assert run(guards(keyword("forbidden"), mode="window").stream("responses"), [body]).body == body


@pytest.mark.parametrize(
    "spec", [keyword("forbidden", regexes=["for[a-z]*n"]), pii("email", "jwt", "private_key", "bank_card")]
)
def test_x_6_ten_megabytes_flow_through_little_memory(spec: GuardrailSpec) -> None:
    guard = Framed(guards(spec, mode="window", max_lengths={"words": 40}).stream("chat"))
    chunk = event(
        chat("Some words of a long answer, which are forever and ever harmless; 12 of them in a row. " * 30)[1]
    )
    most = sent = 0
    tracemalloc.start()
    try:
        for number in range(10_000_000 // len(chunk)):
            sent += len(guard.feed(chunk))
            most = max(most, guard.held_bytes)
            if number == 5:
                assert sent > 0
                tracemalloc.reset_peak()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 3 * len(chunk)
    assert peak < 300_000
    sent += len(guard.finish())
    assert sent == 10_000_000 // len(chunk) * len(chunk)


class Counted:
    """A pattern that counts the characters that it is given to search."""

    def __init__(self, pattern: Any) -> None:
        self.pattern = pattern
        self.characters = 0

    def search(self, text: str, position: int) -> Any:
        self.characters += len(text) - position
        return self.pattern.search(text, position)


@pytest.mark.parametrize("others", [(), (pii("email", "bank_card"),)], ids=["alone", "beside detectors"])
def test_a_watched_regex_without_a_length_makes_nothing_read_all_again(
    others: tuple[GuardrailSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Counted(channels._NUMBER)
    monkeypatch.setattr(channels, "_NUMBER", numbers)
    email = type(DETECTORS["email"])
    open_from = email.open_from

    def counted(self: Any, text: str, low: int) -> int:
        numbers.characters += len(text)
        return open_from(self, text, low)

    monkeypatch.setattr(email, "open_from", counted)
    watched = keyword(regexes=[r"secret\s+plan"], enforcement="monitor")
    guard = guards(watched, *others, mode="window").stream("chat")
    events = [event(payload) for payload in chat(*["harmless "] * 2000, "secret ", " plan")]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [(hit.action, hit.count) for hit in guard.hits] == [("would_block", 1)]
    assert numbers.characters < 500 * len(events)


def test_a_match_that_is_watched_and_never_ends_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its declared length; it counts each time that it has become too long to wait for."""
    read = 0

    def searched(rule: Any, text: str, position: int, patience: Any) -> Any:
        nonlocal read
        read += len(text) - position
        return find(rule, text, position, patience)

    find = channels.Rule.find
    monkeypatch.setattr(channels.Rule, "find", searched)
    spec = keyword(regexes=[r"\w+"], enforcement="monitor")
    guard = guards(spec, max_lengths={"words": 20}).stream("chat")
    events = [event(payload) for payload in chat(*["x" * 100] * 1000)]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [hit.action for hit in guard.hits] == ["would_block"]
    assert read < 10_000 * len(events)


def test_a_stream_with_no_end_of_texts_is_refused() -> None:
    deltas = ({"type": "response.output_text.delta", "output_index": number, "delta": "x"} for number in range(10_000))
    outcome = run(guards(keyword("secret"), mode="window").stream("responses"), map(event, deltas))
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None


def test_strange_events_pass() -> None:
    strange: list[Any] = [
        {"type": "response.output_text.delta", "output_index": [1], "delta": "x"},
        {"type": 5, "delta": None},
        {"type": "response.output_text.delta", "delta": {"a": [1, {"b": "c"}]}},
        {"choices": 3},
        {
            "choices": [
                None,
                {"index": {}, "delta": []},
                {"delta": "text"},
                {"index": 0, "delta": {"tool_calls": [None, "x"]}},
            ]
        },
        [],
        None,
        7,
        "words",
    ]
    body = (
        b"".join(f"data: {json.dumps(payload)}\n\n".encode() for payload in strange) + b"data\n\n:\n\n\n\nretry: 5\n\n"
    )
    for route in ("responses", "chat", "completions", "embeddings"):
        for mode in ("buffer", "window"):
            outcome = run(guards(keyword("secret"), pii("email", "jwt"), mode=mode).stream(route), [body])  # type: ignore[arg-type]
            assert outcome.blocked is None
            assert outcome.body == body
        watching = guards(keyword("secret", enforcement="monitor")).stream(route)  # type: ignore[arg-type]
        assert run(watching, [body]).body == body
