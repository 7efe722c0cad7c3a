"""Guardrails read what a reader or a parser makes of a text: invisible characters, look-alikes, escapes, encoded text."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import pytest

from penstock.gateway.guardrails.normalise import normalise
from penstock.gateway.resources.snapshot import Pattern
from support.guardrail_streams import chat_chunks, delta_text, event, guards, keyword, pii, response_events, run

Mode = Literal["buffer", "window"]
both_modes = pytest.mark.parametrize("mode", ["buffer", "window"])
PHRASE = keyword("secret plan", "BLOCKME")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def nested(text: str, depth: int) -> str:
    """Return JSON inside a string of JSON, with the first letter escaped on the innermost level."""
    value = f'{{"a":"\\u{ord(text[0]):04x}{text[1:]}"}}'
    for _ in range(depth - 1):
        value = json.dumps({"a": value})
    return value


HIDDEN = {
    "zero-width spaces": "BLOCK\u200bME",
    "a soft hyphen": "BLOCK\u00adME",
    "bidi marks": "B\u202aLOCK\u202c\u2066ME\u2069",
    "64 invisible characters": "BLOCK" + "\u200b" * 64 + "ME",
    "variation selectors": "B\ufe0fLOCK\U000e0101ME",
    "full-width letters": "ＢＬＯＣＫＭＥ",
    "mathematical letters": "𝐁𝕃𝒪𝓒𝔎𝙼𝖤",
    "circled letters": "ⒷⓁⓄⒸⓀⓂⒺ",
    "squared letters": "🅱🅻🅾🅲🅺🅼🅴",
    "Cyrillic letters": "ВLОСКМЕ",
    "Greek letters": "ΒLΟCΚΜΕ",
    "small capitals": "ʙʟᴏᴄᴋᴍᴇ",
    "struck-through letters": "B\u0336LOCK\u0336ME\u0336",
    "control characters": "B\x01LOCK\x1bME\x00",
    "deleted characters": "BLO\x7fCK\x9fME",
    "interlinear annotations": "\ufff9BLOCK\ufffaM\ufffbE",
    "combining marks": "B\u0301LO\u0332\u0489CK\u20ddME".replace("\u0489", "\u0308"),
    "80 combining marks": "BLOCK" + "\u0302" * 80 + "ME",
    "an escaped control character": '{"a":"BLOCK\\u0008ME"}',
    "tag characters": "Hello" + "".join(chr(0xE0000 + ord(letter)) for letter in "BLOCKME"),
    "a run of white space": "secret \n\t\u00a0 plan",
    "a blank that is no white space": "secret\u2800plan",
    "an escape in prose": "so it is: \\u0042LOCKME",
    "an escape on the second level in prose": "so it is: \\\\u0042LOCKME",
    "JSON on level 2": nested("BLOCKME", 2),
    "JSON on level 8": nested("BLOCKME", 8),
    "a data URL": f"see data:text/plain;base64,{encoded('it is BLOCKME.')} there",
    "a data URL in any case": f"see dAta:Text/plain;Base64,{encoded('it is BLOCKME.')} there",
    "a percent-encoded data URL": "see data:text/html,it%20is%20%42LOCKME there",
}
NOT_HIDDEN = {
    "prose": "Block me, they said: it is a secret. Plan it! (1) “Grüße”, naïve… 中文，正常。 Привет, мир! 👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "accents": "re\u0301sume\u0301, na\u00efve, Vie\u0302\u0323t Nam; क्षमा; שָׁלוֹם; tab\tand\nline",
    "LaTeX": r"the signs \nabla, \underline{x} and \usepackage{u0042}",
    "a path": r"C:\users\block\me",
    "an image": "![](data:image/png;base64,QkxPQ0tNRQ==)",
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_hidden_text_is_found_in_requests_and_replies(text: str) -> None:
    harness = guards(PHRASE)
    assert harness.request("responses", {"input": text}).blocked_by == "words"
    assert harness.reply("responses", {"output": [{"content": [{"text": text}]}]}).blocked_by == "words"


@both_modes
@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_hidden_text_is_found_in_streams_at_any_split(text: str, mode: Mode) -> None:
    for size in (1, 3, 50):
        deltas = [f"Hi. {text} "[start : start + size] for start in range(0, len(text) + 5, size)]
        payloads = [payload for payload in response_events(deltas) if payload["type"].endswith(".delta")]
        outcome = run(guards(PHRASE, mode=mode).stream("responses"), [event(payload) for payload in payloads])
        assert outcome.blocked is not None, size


@both_modes
@pytest.mark.parametrize("text", NOT_HIDDEN.values(), ids=NOT_HIDDEN)
def test_ordinary_text_is_released_unchanged(text: str, mode: Mode) -> None:
    assert guards(PHRASE, pii("email", "bank_card")).request("responses", {"input": text}).blocked_by is None
    events = [event(payload) for payload in response_events([text[:10], text[10:13], text[13:]])]
    assert run(guards(PHRASE, mode=mode).stream("responses"), events).body == b"".join(events)


MASKED = {
    "bob\u200b@exa\u00admple.com now": "[EMAIL_REDACTED] now",
    "４１１１ １１１１ １１１１ １１１１.": "[BANK_CARD_REDACTED].",
    "é… bob＠example．com, ok": "é… [EMAIL_REDACTED], ok",
    "ﬁ bob@example.com ﬁ": "ﬁ [EMAIL_REDACTED] ﬁ",
    "the code\u200bword  alpha": "the [CUSTOM_REDACTED]",
    '{"to":"bob\\u0040ex\\u00adample.com"}': '{"to":"[EMAIL_REDACTED]"}',
}


@both_modes
@pytest.mark.parametrize(("text", "expected"), MASKED.items())
def test_mask_covers_the_original_text_of_a_match(text: str, expected: str, mode: Mode) -> None:
    spec = pii("email", "bank_card", patterns=[Pattern(kind="regex", value=r"(?i)codeword\s+alpha")])
    body = {"input": text}
    guards(spec).request("responses", body)
    assert body["input"] == expected
    for size in (1, 4, 100):
        deltas = [text[start : start + size] for start in range(0, len(text), size)]
        guard = guards(spec, mode=mode, max_lengths={"private": 20}).stream("responses")
        outcome = run(guard, [event(payload) for payload in response_events(deltas)])
        assert delta_text(outcome.payloads) == expected
        assert guard is not None
        assert [(hit.action, hit.count) for hit in guard.hits] == [("masked", 1)]


@both_modes
@pytest.mark.parametrize(
    "text", ["x" + "\u200b" * 65 + "y", nested("harmless", 9)], ids=["65 invisible characters", "JSON on level 9"]
)
def test_text_that_hides_more_than_can_be_read_is_blocked_if_enforced(text: str, mode: Mode) -> None:
    monitor = keyword("BLOCKME", enforcement="monitor")
    assert guards(PHRASE).request("responses", {"input": text}).blocked_by == "words"
    assert guards(monitor).request("responses", {"input": text}).blocked_by is None
    deltas = [text[start : start + 7] for start in range(0, len(text), 7)]
    events = [event(payload) for payload in chat_chunks(deltas)]
    assert run(guards(PHRASE, mode=mode).stream("chat"), events).blocked is not None
    assert run(guards(monitor).stream("chat"), events).body == b"".join(events)


FIELDS: dict[str, dict[str, Any]] = {
    "the data of a file": {"type": "input_file", "file_data": f"data:text/plain;base64,{encoded('a BLOCKME b')}"},
    "the data of a file without a type": {"type": "input_file", "file_data": encoded("a BLOCKME b" * 999)},
    "a URL of a file": {"type": "input_file", "file_url": "data:text/plain,a%20BLOCKME"},
    "a URL of an image": {"type": "input_image", "image_url": f"data:image/svg+xml;base64,{encoded('<svg>BLOCKME')}"},
    "a URL of an image in a chat": {"type": "image_url", "image_url": {"url": "data:text/plain,BLOCKME"}},
    "the id of a call": {"type": "function_call_output", "call_id": "call_BLOCKME", "output": "x"},
    "an id": {"id": "BLOCKME"},
    "another id": {"type": "x", "customer_id": "BLOCKME"},
    "a keyword of a schema": {"parameters": {"type": "object", "x-note": 1, "BLOCKME": True}},
    "the type in a schema": {"parameters": {"properties": {"a": {"type": "BLOCKME"}}}},
    "the format in a schema": {"schema": {"properties": {"a": {"anyOf": [{"type": "string", "format": "BLOCKME"}]}}}},
    "the required properties of a schema": {"parameters": {"type": "object", "required": ["BLOCKME"]}},
}


@pytest.mark.parametrize("part", FIELDS.values(), ids=FIELDS)
def test_every_field_that_can_carry_text_is_inspected(part: dict[str, Any]) -> None:
    body = {"input": [{"role": "user", "content": [part]}]}
    assert guards(PHRASE).request("responses", body).blocked_by == "words"
    assert guards(keyword("zzz")).request("responses", body).blocked_by is None


def test_text_of_a_file_is_masked_and_encoded_again() -> None:
    part = {"type": "input_file", "file_data": f"data:text/plain;base64,{encoded('to bob@example.com')}"}
    body = {"input": [{"role": "user", "content": [part]}]}
    guards(pii("email")).request("responses", body)
    masked = body["input"][0]["content"][0]["file_data"]  # type: ignore[index]
    assert masked == f"data:text/plain;base64,{encoded('to [EMAIL_REDACTED]')}"


def test_numbers_in_random_ids_are_neither_masked_nor_blocked() -> None:
    body = {"output": [{"id": "msg_4111111111111111", "call_id": "call_4111111111111111"}], "object": "response"}
    inspection = guards(pii("bank_card"), pii("bank_card", action="block", name="b")).reply("responses", body)
    assert (inspection.blocked_by, inspection.hits) == (None, [])


@both_modes
@pytest.mark.parametrize("body", [b"data: BLO\ndata: CKME\n\n", b'data: {"text":"BLO\ndata: CKME"}\n\n'])
def test_literal_split_over_two_data_lines_is_blocked(body: bytes, mode: Mode) -> None:
    assert run(guards(PHRASE, mode=mode).stream("responses"), [body]).blocked is not None


def test_ascii_without_control_characters_is_its_own_normalised_form() -> None:
    text = "\t\n\r" + "".join(map(chr, range(32, 127)))
    assert normalise(text) is text
    assert normalise("".join(map(chr, range(9))) + text + "\x7f\x1b") == text


@both_modes
@pytest.mark.parametrize(
    ("letters", "literal"),
    [("\U0001d401LOCKME", "blockme"), ("BLOC\U0001d40aME", "blockme"), ("\U0001f525!", "\U0001f525!")],
)
def test_surrogate_pair_split_over_two_deltas_is_one_character(letters: str, literal: str, mode: Mode) -> None:
    units = letters.encode("utf-16-le").decode("utf-16-le", "surrogatepass").encode("utf-16-be", "surrogatepass")
    pieces = [units[start : start + 2].decode("utf-16-be", "surrogatepass") for start in range(0, len(units), 2)]
    events = [event(payload) for payload in response_events(["so ", *pieces, " now"], text="clean")]
    outcome = run(guards(keyword(literal), mode=mode).stream("responses"), events)
    assert outcome.blocked is not None
    spec = pii(patterns=[Pattern(kind="regex", value=f"(?i){literal}", name="w")])
    masked = run(guards(spec, mode=mode, max_lengths={"private": 7}).stream("responses"), events)
    assert delta_text(masked.payloads).replace("\ud835", "").replace("\ud83d", "") == "so [W_REDACTED] now"


def test_accented_literal_is_not_found_without_its_accent() -> None:
    for literal in ("caf\u00e9", "cafe\u0301"):
        assert guards(keyword(literal)).request("responses", {"input": "a cafe"}).blocked_by is None
        for text in ("a caf\u00e9", "a CAFE\u0301"):
            assert guards(keyword(literal)).request("responses", {"input": text}).blocked_by == "words"
