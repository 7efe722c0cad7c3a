"""Window mode: when events are released, and how much is held."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from penstock.gateway.guardrails import Blocked, incremental_search, window
from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from support.guardrail_streams import (
    FramedGuard,
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


def released_counts(payloads: list[Any], *specs: GuardrailSpec, route: Any = "chat") -> list[int]:
    """Return the number of released events after each event, and at the end."""
    guard = FramedGuard(guards(*specs, mode="window").stream(route))
    counts: list[int] = []
    total = 0
    for payload in payloads:
        total += guard.feed(event(payload)).count(b"\n\n")
        counts.append(total)
    return [*counts, total + guard.finish().count(b"\n\n")]


def chat(*deltas: Any) -> list[Any]:
    return chat_chunks(deltas)


def test_events_without_text_are_held_until_the_first_text() -> None:
    payloads = response_events(["Hello"])
    assert released_counts(payloads, keyword("zzz"), route="responses")[:5] == [0, 0, 0, 4, 5]


def test_stream_without_text_is_released_at_its_end() -> None:
    payloads = [response_events([])[0], {"type": "response.failed", "response": {"id": "r", "output": []}}]
    assert released_counts(payloads, keyword("zzz"), route="responses") == [0, 0, 2]


def test_text_is_held_only_while_it_may_start_a_literal() -> None:
    assert released_counts(chat("clean ", "text", " se", "t", " s", "ecre", "t!"[1:]), keyword("secret")) == [
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


def test_held_text_is_bounded_by_the_literal_prefix() -> None:
    guard = FramedGuard(guards(keyword("aaab", "xyz" * 100), mode="window").stream("completions"))
    for _ in range(2_000):
        guard.feed(event({"choices": [{"index": 0, "text": "a"}]}))
    assert guard.held_bytes == 3 * len(event({"choices": [{"index": 0, "text": "a"}]}))


def test_held_text_is_bounded_by_max_length() -> None:
    guard = FramedGuard(
        guards(keyword(regexes=["q[a-z]*q"]), mode="window", max_lengths={"words": 20}).stream("completions")
    )
    chunk_event = event({"choices": [{"index": 0, "text": "a"}]})
    for _ in range(500):
        guard.feed(chunk_event)
    assert guard.held_bytes <= 22 * len(chunk_event)


@pytest.mark.parametrize(
    "detector", ["email", "china_mobile", "bank_card", "us_ssn", "ip_address", "api_key", "jwt", "private_key"]
)
def test_detectors_hold_at_most_a_few_words_of_prose(detector: str) -> None:
    pieces = ["It", " was", " 1984", ",", " the", " task", " --", " see", " a", "@", "b", " or", " 12", ":", "30", "."]
    counts = released_counts(chat(*pieces), pii(detector))
    assert counts[-1] == len(pieces) + 2
    assert all(fed + 1 - left <= 4 for fed, left in enumerate(counts[2:-1], start=2))


def test_ended_text_is_not_held() -> None:
    payloads = response_events(["the se"])
    assert released_counts(payloads, keyword("secret"), route="responses")[3:] == [0, 0, 0, 0, 8, 8]
    ended = [*chat("the se"), *chat_chunks([], finish=False)]
    assert released_counts(ended, keyword("secret"))[2] == 3
    named = chat(tool(0, "se", ""), tool(0, None, "{"), tool(0, None, "}"))
    assert released_counts(named, keyword("secret")) == [0, 0, 2, 2, 5, 5]


def tool(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function}]}


SWITCHES: dict[str, tuple[list[Any], list[int]]] = {
    "reasoning, then content": ([{"reasoning_content": "so se"}, "Hello", "!"], [0, 0, 3, 4, 6, 6]),
    "switching back": (
        [{"reasoning_content": "se"}, "x", {"reasoning_content": "em"}, "y"],
        [0, 0, 3, 5, 6, 7, 7],
    ),
    "tool arguments, which are held to their end": (
        [tool(0, None, "se"), tool(1, None, "x"), tool(0, None, "em"), tool(1, None, "y")],
        [0, 0, 0, 0, 0, 6, 6],
    ),
}


@pytest.mark.parametrize(("deltas", "counts"), SWITCHES.values(), ids=SWITCHES)
def test_events_do_not_wait_for_a_field_the_stream_switched_away_from(deltas: list[Any], counts: list[int]) -> None:
    """The undecided end of the field is sent as a separate event, when the field continues or the choice ends."""
    payloads = chat(*deltas)
    assert released_counts(payloads, keyword("secret")) == counts
    outcome = run(guards(keyword("secret"), mode="window").stream("chat"), [event(payload) for payload in payloads])
    assert accumulated(outcome.payloads) == accumulated(payloads)
    assert all(payload["id"] == "chatcmpl-1" for payload in outcome.payloads)


def accumulated(payloads: list[Any]) -> dict[Any, str]:
    """Return the text of each field, as a client accumulates it."""
    texts: dict[Any, str] = {}
    for payload in payloads:
        for choice in payload["choices"]:
            delta = choice["delta"]
            fields = {name: delta[name] for name in ("content", "reasoning_content") if delta.get(name)}
            fields |= {call["index"]: call["function"]["arguments"] for call in delta.get("tool_calls", ())}
            for name, text in fields.items():
                texts[name] = texts.get(name, "") + text
    return texts


def test_interrupted_field_is_searched_as_one_text() -> None:
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


def test_detached_pieces_are_bounded() -> None:
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
def test_lookaround_works_across_events(pattern: str, length: int, deltas: list[str], blocked: bool) -> None:
    guard = guards(keyword(regexes=[pattern]), mode="window", max_lengths={"words": length}).stream("chat")
    assert (run(guard, [event(payload) for payload in chat(*deltas)]).blocked is not None) == blocked


def test_match_longer_than_max_length_is_masked_whole() -> None:
    spec = pii(patterns=[Pattern(kind="regex", value="EMP-[0-9]+", name="e")])
    guard = guards(spec, mode="window", max_lengths={"private": 6}).stream("chat")
    outcome = run(guard, [event(p) for p in chat("EMP-", *"1234567890" * 4, " ok")])
    assert chat_text(outcome.payloads) == "[E_REDACTED] ok"


def test_plus_sign_of_a_number_is_masked_across_events() -> None:
    outcome = run(
        guards(pii("china_mobile"), mode="window").stream("chat"),
        [event(p) for p in chat("call +", "86 13800138000", " x")],
    )
    assert chat_text(outcome.payloads) == "call [CHINA_MOBILE_REDACTED] x"


def test_block_mid_stream_releases_only_the_clean_text() -> None:
    payloads = response_events(["Hello there. ", "The sec", "ret is out"])
    guard = guards(keyword("secret"), mode="window").stream("responses")
    outcome = run(guard, [event(payload) for payload in payloads])
    assert outcome.blocked is not None
    assert delta_text(outcome.payloads) == "Hello there. "


def test_last_event_with_different_text_is_masked_on_its_own() -> None:
    payloads = response_events(["clean"], text="joe@example.com")
    outcome = run(guards(pii("email"), mode="window").stream("responses"), [event(p) for p in payloads])
    assert outcome.payloads[-1]["response"]["output"][0]["content"][0]["text"] == "[EMAIL_REDACTED]"
    assert outcome.body.startswith(wire(payloads[:4]))


def test_exceeding_the_hold_back_limit_blocks_without_a_guardrail_name() -> None:
    guard = guards(pii("private_key"), mode="window", max_buffer_bytes=2000).stream("chat")
    outcome = run(guard, [event(p) for p in chat("-----BEGIN PRIVATE KEY-----\n", *["MIIE"] * 1000)])
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None
    assert outcome.body == b""


def test_large_events_without_text_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_HELD_BYTES", 250_000)
    payloads = response_events(["Hello FORB", "IDDEN"])
    payloads[0]["response"]["instructions"] = "x" * 300_000
    guard = guards(keyword("forbidden"), mode="window").stream("responses")
    outcome = run(guard, [event(payload) for payload in payloads])
    assert outcome.blocked is not None
    assert outcome.body == wire(payloads[:3])


def test_one_large_clean_delta_is_released() -> None:
    body = wire(response_events(["x " * 300_000]))
    assert run(guards(keyword("forbidden"), mode="window").stream("responses"), [body]).body == body


@pytest.mark.parametrize(
    "spec", [keyword("forbidden", regexes=["for[a-z]*n"]), pii("email", "jwt", "private_key", "bank_card")]
)
def test_megabytes_need_little_memory(spec: GuardrailSpec) -> None:
    guard = FramedGuard(guards(spec, mode="window", max_lengths={"words": 40}).stream("chat"))
    chunk = event(
        chat("Some words of a long answer, which are forever and ever harmless; 12 of them in a row. " * 30)[1]
    )
    max_held = sent = 0
    tracemalloc.start()
    try:
        for number in range(4_000_000 // len(chunk)):
            sent += len(guard.feed(chunk))
            max_held = max(max_held, guard.held_bytes)
            if number == 5:
                assert sent > 0
                tracemalloc.reset_peak()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max_held <= 3 * len(chunk)
    assert peak < 300_000
    sent += len(guard.finish())
    assert sent == 4_000_000 // len(chunk) * len(chunk)


class CountingPattern:
    """A pattern that counts the characters it searches."""

    def __init__(self, pattern: Any) -> None:
        self.pattern = pattern
        self.characters = 0

    def search(self, text: str, position: int) -> Any:
        self.characters += len(text) - position
        return self.pattern.search(text, position)


@pytest.mark.parametrize("others", [(), (pii("email", "bank_card"),)], ids=["alone", "with detectors"])
def test_monitored_regex_without_max_length_does_not_rescan_the_text(
    others: tuple[GuardrailSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CountingPattern(incremental_search._NUMBER)
    monkeypatch.setattr(incremental_search, "_NUMBER", counter)
    email = type(DETECTORS["email"])
    undecided_from = email.undecided_from

    def counted(self: Any, text: str, low: int) -> int:
        counter.characters += len(text)
        return undecided_from(self, text, low)

    monkeypatch.setattr(email, "undecided_from", counted)
    monitored = keyword(regexes=[r"secret\s+plan"], enforcement="monitor")
    guard = guards(monitored, *others, mode="window").stream("chat")
    events = [event(payload) for payload in chat(*["harmless "] * 2000, "secret ", " plan")]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [(hit.action, hit.count) for hit in guard.hits] == [("would_block", 1)]
    assert counter.characters < 500 * len(events)


def test_endless_monitored_match_is_not_rescanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A match of a regex with a maximum length that grows without end is counted each time it gets too long."""
    characters = 0

    def counting_find(rule: Any, text: str, position: int, budgets: Any) -> Any:
        nonlocal characters
        characters += len(text) - position
        return find(rule, text, position, budgets)

    find = incremental_search.Rule.find
    monkeypatch.setattr(incremental_search.Rule, "find", counting_find)
    spec = keyword(regexes=[r"\w+"], enforcement="monitor")
    guard = guards(spec, max_lengths={"words": 20}).stream("chat")
    events = [event(payload) for payload in chat(*["x" * 100] * 1000)]
    assert run(guard, events).body == b"".join(events)
    assert guard is not None
    assert [hit.action for hit in guard.hits] == ["would_block"]
    assert characters < 10_000 * len(events)


def test_stream_with_too_many_texts_is_blocked() -> None:
    deltas = ({"type": "response.output_text.delta", "output_index": number, "delta": "x"} for number in range(10_000))
    outcome = run(guards(keyword("secret"), mode="window").stream("responses"), map(event, deltas))
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None


def test_malformed_events_pass_unchanged() -> None:
    malformed: list[Any] = [
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
        b"".join(f"data: {json.dumps(payload)}\n\n".encode() for payload in malformed)
        + b"data\n\n:\n\n\n\nretry: 5\n\n"
    )
    for route in ("responses", "chat", "completions", "embeddings"):
        for mode in ("buffer", "window"):
            outcome = run(guards(keyword("secret"), pii("email", "jwt"), mode=mode).stream(route), [body])  # type: ignore[arg-type]
            assert outcome.blocked is None
            assert outcome.body == body.replace(b":\n\n\n\nretry: 5\n\n", b"\n\n")
        monitored = guards(keyword("secret", enforcement="monitor")).stream(route)  # type: ignore[arg-type]
        assert run(monitored, [body]).body == body


def test_block_of_a_stream_that_is_too_long_follows_the_last_event_that_was_sent() -> None:
    def delta(sequence: int, kind: str, text: str) -> bytes:
        payload = {"type": f"response.{kind}.delta", "output_index": 0, "content_index": 0, "delta": text}
        return event({**payload, "sequence_number": sequence})

    guard = FramedGuard(guards(keyword("FORBIDDEN"), mode="window", max_buffer_bytes=100).stream("responses"))
    assert guard.feed(delta(0, "output_text", "Hello. ")) != b""
    with pytest.raises(Blocked) as blocked:  # arguments are held to their end
        guard.feed(delta(1, "output_text", "World.") + delta(2, "function_call_arguments", "x" * 101))
    assert blocked.value.too_long
    assert b'"sequence_number":1,' in guard.guard.block_event(blocked.value)
