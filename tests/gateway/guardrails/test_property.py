"""Window mode compared with a search of the whole text."""

from __future__ import annotations

import json
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.resources.snapshot import Pattern
from support.guardrail_streams import delta_text, guards, keyword, pii, response_events, run

SHORT = st.sampled_from(["ab", "ab\n", "ab 1", "b1-a", "abAB ßéİ界-1\n"]).flatmap(
    lambda alphabet: st.text(alphabet, max_size=12)
)
TEXT = st.one_of(
    SHORT,
    st.builds(
        lambda first, filler, times, last: first + filler * times + last, SHORT, SHORT, st.integers(0, 50), SHORT
    ),
)
REGEXES = {
    "a[b1]{1,3}": 4,
    r"\bb{1,3}a\b": 4,
    "(?<=a)b": 2,
    "(?<=b1-a)b": 5,
    "^ab": 2,
    "ab$": 2,
    "(?m)^b": 1,
    "(?m)b$": 1,
    "(?i)é.b": 3,
    "b(?! )a?": 2,
    "[^a]界": 2,
}
"""Pattern -> its maximum match length, including look-arounds."""


@st.composite
def split_text(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def sse_reads(draw: st.DrawFn, payloads: list[dict[str, Any]]) -> list[bytes]:
    """The events in any form that the SSE standard allows, split into reads of any size."""
    body = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    for payload in payloads:
        end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
        text = json.dumps(payload, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
        lines = [f"data:{draw(st.sampled_from(['', ' ']))}{line}" for line in text.split("\n")]
        if draw(st.booleans()):
            lines.insert(0, f"event: {payload['type']}")
        if draw(st.integers(0, 9)) == 0:
            lines.insert(0, ": ~")
        body += (end.join(lines) + 2 * end).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    return [body[first:last] for first, last in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def without_comments(reads: list[bytes]) -> bytes:
    return regex.sub(rb": ~(?:\r\n|\n|\r)", b"", b"".join(reads))


def deltas_only(deltas: list[str]) -> list[dict[str, Any]]:
    return [payload for payload in response_events(deltas) if payload["type"].endswith(".delta")]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_stream_is_blocked_exactly_when_the_text_matches_and_no_match_is_released(data: st.DataObject) -> None:
    literals = data.draw(st.lists(st.text(alphabet="abBßé界-", min_size=1, max_size=4), max_size=4))
    patterns = data.draw(st.lists(st.sampled_from(list(REGEXES)), max_size=2, unique=True))
    text = data.draw(TEXT)
    payloads = deltas_only(data.draw(split_text(text)))
    reads = data.draw(sse_reads(payloads))
    max_lengths = {"words": max(map(REGEXES.__getitem__, patterns), default=1)}
    harness = guards(keyword(*literals, "zz", regexes=patterns), mode="window", max_lengths=max_lengths)
    guard = harness.stream("responses")

    outcome = run(guard, reads)

    folded = "".join(character.casefold() for character in text)
    starts = [
        start for literal in literals for start in range(len(folded)) if folded.startswith(literal.casefold(), start)
    ]
    matches = [match.start() for pattern in patterns for match in regex.finditer(pattern, text)]
    assert (outcome.blocked is not None) == bool(starts or matches)
    if outcome.blocked is None:
        assert outcome.body == without_comments(reads)
        return
    assert outcome.blocked.guardrail == "words"
    released = delta_text(outcome.payloads)
    assert text.startswith(released)
    assert len(released.casefold()) <= min(starts, default=len(folded))
    assert len(released) <= min(matches, default=len(text))


MASKED = {"a[b1]{1,3}": 4, "b{1,4}": 4, "(?<=a)b( )": 3, r"\ba\b": 1, "1(b)?": 2, "é.?": 2, "b+": 2}
"""Pattern -> its configured maximum match length. The last one can match more, and is still masked whole."""


def masked(text: str, spans: list[tuple[int, int, int, str]]) -> str:
    """Reference implementation: of overlapping spans the first inserts its token, and their union is removed."""
    out, position = "", 0
    for start, _, end, token in sorted(spans):
        if start >= position:
            out += text[position:start] + token
        position = max(position, end)
    return out + text[position:]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_stream_masks_equal_masks_of_the_whole_text(data: st.DataObject) -> None:
    patterns = data.draw(st.lists(st.sampled_from(list(MASKED)), min_size=1, max_size=3, unique=True))
    text = data.draw(TEXT)
    payloads = response_events(data.draw(split_text(text)))
    reads = data.draw(sse_reads(payloads))
    custom = [
        Pattern(kind="regex", value=pattern, name=f"n{number}", action="mask")
        for number, pattern in enumerate(patterns)
    ]
    max_lengths = {"private": max(MASKED[pattern] for pattern in patterns)}
    guard = guards(pii(patterns=custom), mode="window", max_lengths=max_lengths).stream("responses")

    outcome = run(guard, reads)

    spans = []
    for number, pattern in enumerate(patterns):
        for match in regex.finditer(pattern, text):
            first, last = match.span(1) if match.re.groups and match[1] else match.span()
            spans.append((first, number, last, f"[N{number}_REDACTED]"))
    expected = masked(text, spans)
    assert outcome.blocked is None
    assert delta_text(outcome.payloads) == expected
    assert outcome.payloads[-1]["response"]["output"][0]["content"][0]["text"] == expected
    assert outcome.payloads[-4]["text"] == expected
    assert [payload["sequence_number"] for payload in outcome.payloads] == list(range(len(payloads)))
    if not spans:
        assert outcome.body == without_comments(reads)


FRAGMENTS = st.sampled_from(
    [
        *(
            "a.b+c@example.co.uk",
            "x@y",
            "@",
            "joe@example.com",
            "x" * 70 + "@long.example.org",
            "@a.b.c.d.e.f.g.h.i.jk",
        ),
        *("13800138000", "+86 138-0013-8000", "0086", "86", "138", "0013", "8000", "+", "11010519491231002X"),
        *("110105194912310021", "4111 1111 1111 1111", "4111111111111111", "378282246310005", "3782-822463-10005"),
        *("4111", "1111", "123-45-6789", "123-45-67890", "000-12-3456", "10.0.0.1", "1.2.3.4.5", "255.255.255.256"),
        *("::1", "2001:db8::ff00:42:8329", "fe80::1", "12:30:45", "std::vector", "face", "::", "1.2.3.4"),
        *(
            "sk-abcdefghijklmnopqrst",
            "sk-",
            "task-force",
            "AKIAIOSFODNN7EXAMPLE",
            "ghp_" + "a1" * 18,
            "xoxb-1234567890-abc",
        ),
        *("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJ", "ey", "eyJhbGciOiJI.", "xeyJhbGciOiJI.eyJzdWIi."),
        *(
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA",
            "-----END RSA PRIVATE KEY-----",
        ),
        *(
            "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----",
            "--",
            "-----BEGIN",
            "-----BEGIN CERTIFICATE-----",
        ),
        *(" ", " ", " ", ", ", ".", "\n", "-", "word", "电话", "X", "1", "22", "=", ":"),
    ]
)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_detectors_mask_a_stream_like_the_whole_text(data: st.DataObject) -> None:
    names = data.draw(
        st.one_of(
            st.just(list(DETECTORS)), st.lists(st.sampled_from(list(DETECTORS)), min_size=1, max_size=2, unique=True)
        )
    )
    text = "".join(data.draw(st.lists(FRAGMENTS, min_size=1, max_size=7)))
    payloads = deltas_only(data.draw(split_text(text)))
    guard = guards(pii(*names), mode="window").stream("responses")

    outcome = run(guard, [json.dumps(payload).join(["data: ", "\n\n"]).encode() for payload in payloads])

    spans = []
    for number, name in enumerate(names):
        position = 0
        while (match := DETECTORS[name].find(text, position)) is not None:
            spans.append((match[0], number, match[1], f"[{name.upper()}_REDACTED]"))
            position = match[1]
    assert outcome.blocked is None
    assert delta_text(outcome.payloads) == masked(text, spans)
