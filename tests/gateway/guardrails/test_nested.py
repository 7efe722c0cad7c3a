"""Streams of JSON inside JSON: window mode gives the same result as buffer mode."""

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
    """Return a tool call's arguments as the caller receives them, and the hits."""
    deltas = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    guard = guards(pii(*detectors), mode=mode, max_buffer_bytes=1 << 22).stream("chat")
    assert guard is not None
    outcome = run(guard, [event(payload) for payload in chat_chunks(deltas)])
    calls = [call for payload in outcome.payloads for call in payload["choices"][0]["delta"].get("tool_calls", ())]
    text = "".join(call["function"]["arguments"] for call in calls)
    assert outcome.blocked is None
    return text, [(hit.action, hit.count) for hit in guard.hits]


def split_text(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.slow
def test_mask_position_is_right_after_hundreds_of_escapes() -> None:
    for count in (127, 128, 129, 254, 255, 256):
        inner = '{"k":[' + ",".join(['"x"'] * count) + '],"m":"bob\\u0040example.com"}'
        text = json.dumps({"payload": inner})
        expected = text.replace("bob\\\\u0040example.com", "[EMAIL_REDACTED]")
        for size in (1, 3, 5, 40):
            assert arguments(split_text(text, size), "window", "email") == (expected, [("masked", 1)])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_piece_ending_within_an_escape_is_held_on_both_levels(size: int) -> None:
    card = "".join(f"\\u{ord(digit):04x}" for digit in "4111111111111111")
    for before in range(8):
        text = json.dumps({"payload": json.dumps({"k": "x" * before})[:-1] + f', "m": "{card}"}}'})
        result = arguments(split_text(text, size), "window", "bank_card")
        assert result == arguments([text], "buffer", "bank_card")
        assert "[BANK_CARD_REDACTED]" in result[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"q":"xx \\ud83d\\udd25\\u79d8\\u5bc6 yy"}',
        '{"q":"\\\\uD83D\\\\uDD25\\\\u79d8\\\\u5bc6"}',
        '["\\ud83d\\ud83d\\udd25秘密"]',
    ],
)
def test_escaped_surrogate_pair_is_decoded_at_any_split(text: str) -> None:
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
def test_second_level_starting_with_a_split_escape_is_masked(text: str) -> None:
    expected = arguments([text], "buffer", "email")
    for cut in range(1, len(text)):
        assert arguments([text[:cut], text[cut:]], "window", "email") == expected


FRAGMENTS = st.sampled_from(
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
    """Two levels of JSON, in which random characters are escaped in addition to those that must be."""
    chance = Random(draw(st.integers(0, 1000)))

    def escape(text: str, share: float) -> str:
        escaped = (
            f"\\u{ord(character):04x}"
            if chance.random() < share and character < "\uffff"
            else json.dumps(character)[1:-1]
            for character in text
        )
        return "".join(escaped)

    fragments = draw(st.lists(FRAGMENTS, min_size=1, max_size=12)) * draw(st.sampled_from([1, 10]))
    text = draw(st.sampled_from(["", '"x",' * 60])) + "".join(fragments)
    inner = '{"a":"' + escape(text, draw(st.sampled_from([0.0, 0.1, 0.9]))) + '"}'
    return '{"b":"' + escape(inner, draw(st.sampled_from([0.0, 0.1]))) + '"}'


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    nested(),
    st.lists(st.sampled_from([1, 3, 8, 40]), min_size=1, max_size=4),
    st.sets(st.sampled_from(DETECTORS), min_size=1),
)
def test_both_modes_mask_nested_json_alike(text: str, sizes: list[int], detectors: set[str]) -> None:
    pieces: list[str] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    chosen = sorted(detectors)
    assert arguments(pieces, "window", *chosen) == arguments(pieces, "buffer", *chosen)
