"""JSON inside of JSON in a stream: a window shows the caller what a buffer does, however long the stream and its escapes."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.guardrail_streams import chat_chunks, event, guards, keyword, pii, run

DETECTORS = ("email", "bank_card", "us_ssn", "ip_address", "api_key", "china_mobile", "jwt", "private_key")


def arguments(pieces: list[str], mode: Literal["buffer", "window"], *detectors: str) -> tuple[str, Any]:
    """What the caller reads of a tool's arguments, and what is counted; a block is None."""
    deltas = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    guard = guards(pii(*detectors), mode=mode, max_buffer_bytes=1 << 22).stream("chat")
    assert guard is not None
    outcome = run(guard, [event(payload) for payload in chat_chunks(deltas)])
    calls = [call for payload in outcome.payloads for call in payload["choices"][0]["delta"].get("tool_calls", ())]
    text = "".join(call["function"]["arguments"] for call in calls)
    assert outcome.blocked is None
    return text, [(hit.action, hit.count) for hit in guard.hits]


def in_pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def test_a_mask_stands_where_the_text_stood_behind_hundreds_of_escapes() -> None:
    for count in (127, 128, 129, 254, 255, 256):
        inner = '{"k":[' + ",".join(['"x"'] * count) + '],"m":"bob\\u0040example.com"}'
        text = json.dumps({"payload": inner})
        expected = text.replace("bob\\\\u0040example.com", "[EMAIL_REDACTED]")
        for size in (1, 3, 5, 40):
            assert arguments(in_pieces(text, size), "window", "email") == (expected, [("masked", 1)])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_a_piece_that_ends_within_an_escape_waits_for_what_that_becomes_on_both_levels(size: int) -> None:
    card = "".join(f"\\u{ord(digit):04x}" for digit in "4111111111111111")
    for before in range(8):
        text = json.dumps({"payload": json.dumps({"k": "x" * before})[:-1] + f', "m": "{card}"}}'})
        found = arguments(in_pieces(text, size), "window", "bank_card")
        assert found == arguments([text], "buffer", "bank_card")
        assert "[BANK_CARD_REDACTED]" in found[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"q":"xx \\ud83d\\udd25\\u79d8\\u5bc6 yy"}',
        '{"q":"\\\\uD83D\\\\uDD25\\\\u79d8\\\\u5bc6"}',
        '["\\ud83d\\ud83d\\udd25秘密"]',
    ],
)
def test_a_character_beyond_the_first_plane_is_read_wherever_its_escapes_are_cut(text: str) -> None:
    for first in range(1, len(text)):
        for last in range(first, len(text)):
            pieces = [piece for piece in (text[:first], text[first:last], text[last:]) if piece]
            deltas = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
            guard = guards(keyword("🔥秘密"), mode="window").stream("chat")
            assert run(guard, [event(payload) for payload in chat_chunks(deltas)]).blocked is not None, pieces


@pytest.mark.parametrize(
    "text",
    [
        '"\\u0022bob@example.com\\u0022"',
        '{"p":"\\u007b\\u0022a\\u0022:\\u0022bob@example.com\\u0022}"}',
        ' ["\\u0020\\u005b\\u0022\\u005cu0062ob@example.com',
    ],
)
def test_a_second_level_that_begins_with_an_escape_cut_in_two_is_masked(text: str) -> None:
    expected = arguments([text], "buffer", "email")
    for place in range(1, len(text)):
        assert arguments([text[:place], text[place:]], "window", "email") == expected


WORDS = st.sampled_from(
    [
        *(
            "bob@example.com",
            "4111 1111 1111 1111",
            "123-45-6789",
            "10.1.2.3",
            "sk-abcdefghijklmnop1234",
            "13812345678",
        ),
        *("word ", '"x",', "1 ", "a.", "@", "-", "\n", "é", "🔥", '{"k":"v"}', "12", "9 ", "sk-", "::"),
    ]
)


@st.composite
def nested(draw: st.DrawFn) -> str:
    """Two levels; each character is written as an escape, as it must be, or by chance."""
    chance = Random(draw(st.integers(0, 1000)))

    def escaped(text: str, share: float) -> str:
        signs = (
            f"\\u{ord(sign):04x}" if chance.random() < share and sign < "\uffff" else json.dumps(sign)[1:-1]
            for sign in text
        )
        return "".join(signs)

    words = draw(st.lists(WORDS, min_size=1, max_size=12)) * draw(st.sampled_from([1, 10]))
    text = draw(st.sampled_from(["", '"x",' * 60])) + "".join(words)
    inner = '{"a":"' + escaped(text, draw(st.sampled_from([0.0, 0.1, 0.9]))) + '"}'
    return '{"b":"' + escaped(inner, draw(st.sampled_from([0.0, 0.1]))) + '"}'


@settings(max_examples=100, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    nested(),
    st.lists(st.sampled_from([1, 3, 8, 40]), min_size=1, max_size=4),
    st.sets(st.sampled_from(DETECTORS), min_size=1),
)
def test_both_modes_show_the_same(text: str, sizes: list[int], detectors: set[str]) -> None:
    pieces: list[str] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    chosen = sorted(detectors)
    assert arguments(pieces, "window", *chosen) == arguments(pieces, "buffer", *chosen)
