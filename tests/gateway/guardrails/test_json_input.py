"""Inspection of JSON bytes: masking in place, duplicate keys, JSON inside strings, and SSE lines other than data."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.guardrails import DuplicateKeyError, SearchBudgets
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from penstock.gateway.routes import BY_NAME
from support.guardrail_streams import chat_chunks, event, guards, keyword, pii, run

Mode = Literal["buffer", "window"]
MODES: tuple[Mode, ...] = ("buffer", "window")
both_modes = pytest.mark.parametrize("mode", MODES)
BLOCK = keyword("BLOCKME")


def masked(body: bytes, *specs: GuardrailSpec, reply: bool = False) -> bytes:
    compiled = guards(*(specs or (pii("email"),))).compiled
    return (compiled.inspect_reply if reply else compiled.inspect_request)(
        BY_NAME["responses"], body, SearchBudgets(1.0)
    ).body


# -- masking in place -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            b'{"f":1.0000000000000000000001, "g" : 1E400,\n "input":"a@b.example"}',
            b'{"f":1.0000000000000000000001, "g" : 1E400,\n "input":"[EMAIL_REDACTED]"}',
        ),
        (
            b'{"input":[ {"content":"x"}, {"content":"to a@b.example \\u00e9"} ], "x":"\\u0041"}',
            '{"input":[ {"content":"x"}, {"content":"to [EMAIL_REDACTED] é"} ], "x":"\\u0041"}'.encode(),
        ),
        (
            b'{"metadata":{"a@b.example":["a@b.example"],"c@d.example":"z"}, "t":[[],{}]}',
            b'{"metadata":{"[EMAIL_REDACTED]":["[EMAIL_REDACTED]"],"[EMAIL_REDACTED]":"z"}, "t":[[],{}]}',
        ),
        (b'{"a":"\\ud800","input":"a@b.example"}', b'{"a":"\\ud800","input":"[EMAIL_REDACTED]"}'),
        (b'{"n":' + b"9" * 5000 + b',"input":"a@b.example"}', b'{"n":' + b"9" * 5000 + b',"input":"[EMAIL_REDACTED]"}'),
    ],
)
def test_masking_changes_only_the_masked_strings(before: bytes, after: bytes, reply: bool) -> None:
    if not (reply and b"metadata" in before):  # the metadata of a reply echoes the request
        assert masked(before.replace(b'"input"', b'"words"') if reply else before, reply=reply) == (
            after.replace(b'"input"', b'"words"') if reply else after
        )


def test_logprobs_of_a_masked_choice_are_removed() -> None:
    body = b'{"choices": [{"logprobs": {"content": [{"token": "a@"}]}, "message": {"content": "a@b.example"}}]}'
    assert masked(body, reply=True) == (
        b'{"choices": [{"logprobs": null, "message": {"content": "[EMAIL_REDACTED]"}}]}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a@b.example", "x", 'say "a@b.example"', "\\", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_masked_body_parses_to_the_original_with_masks(body: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(masked(text.encode())) == json.loads(text.replace("a@b.example", "[EMAIL_REDACTED]"))


@pytest.mark.parametrize("reply", [["BLOCKME"], "BLOCKME", [[{"text": "BLOCKME"}]]])
def test_reply_of_any_json_type_is_inspected(reply: Any) -> None:
    compiled = guards(BLOCK, pii("email")).compiled
    assert (
        compiled.inspect_reply(BY_NAME["responses"], json.dumps(reply).encode(), SearchBudgets(1.0)).blocked_by
        == "words"
    )
    assert masked(json.dumps(reply).replace("BLOCKME", "a@b.example").encode(), reply=True) == (
        json.dumps(reply).replace("BLOCKME", "[EMAIL_REDACTED]").encode()
    )


# -- ambiguous bodies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"input":"BLOCKME","input":"ok"}',
        b'{"input":[{"content":"BLOCKME","cont\\u0065nt":"ok"}]}',
        b'{"metadata":{"a":{"b":1,"b":2}}}',
    ],
)
def test_duplicate_key_in_a_request_raises(body: bytes) -> None:
    with pytest.raises(DuplicateKeyError):
        guards(BLOCK).compiled.inspect_request(BY_NAME["responses"], body, SearchBudgets(1.0))


def test_lone_surrogate_is_read_as_replacement_character() -> None:
    compiled = guards(keyword("a\ufffdb")).compiled
    assert (
        compiled.inspect_request(BY_NAME["responses"], b'{"input":"a\\ud800b"}', SearchBudgets(1.0)).blocked_by
        == "words"
    )
    assert (
        compiled.inspect_request(BY_NAME["responses"], b'{"input":"a\\ud83d\\ude00b"}', SearchBudgets(1.0)).blocked_by
        is None
    )


# -- JSON inside strings --------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "an escape": '{"a":"\\u0042LOCKME"}',
    "an escaped last letter": '{"a":"BLOCKM\\u0045"}',
    "a key": '{"\\u0042LOCKME": 1}',
    "truncated": '{"a": ["\\u0042LOCKME',
    "after whitespace": ' \n {"a":"\\u0042LOCKME"}',
    "a string": '"\\u0042LOCKME"',
    "JSON in JSON": json.dumps({"a": '{"b":"\\u0042LOCKME"}'}),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_escapes_in_tool_arguments_and_outputs_are_decoded(arguments: str) -> None:
    for item in (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": arguments},
        {"type": "function_call_output", "call_id": "c", "output": [{"text": "so:"}, {"text": arguments}]},
    ):
        assert guards(BLOCK).request("responses", {"input": [item]}).blocked_by == "words"
        assert guards(BLOCK).reply("responses", {"output": [item]}).blocked_by == "words"


@pytest.mark.parametrize("literal", ["禁词", "Straße", "😀!"])
def test_non_ascii_literal_is_found_in_arguments(literal: str) -> None:
    body = {"input": [{"type": "function_call", "arguments": json.dumps({"a": f"x {literal} y"})}]}
    assert guards(keyword(literal)).request("responses", body).blocked_by == "words"


def test_backslashes_in_prose_are_not_escapes() -> None:
    assert guards(keyword("\nabla")).request("responses", {"input": r"the sign \nabla"}).blocked_by is None


def test_escaped_match_is_masked_at_its_source_position() -> None:
    arguments = r'{"to":"\u0061@b.example","n":"\u00e9 \"c@d.example\""}'
    expected = r'{"to":"[EMAIL_REDACTED]","n":"\u00e9 \"[EMAIL_REDACTED]\""}'
    body = {"input": [{"type": "function_call", "arguments": arguments}]}
    inspection = guards(pii("email")).request("responses", body)
    assert body["input"][0]["arguments"] == expected
    assert [(hit.action, hit.count) for hit in inspection.hits] == [("masked", 2)]
    quoted = pii(patterns=[Pattern(kind="regex", value="é x", replacement='"quoted"')])
    body = {"input": [{"type": "function_call", "arguments": r'{"a":"\u00e9 x"}'}]}
    guards(quoted).request("responses", body)
    assert json.loads(body["input"][0]["arguments"]) == {"a": '"quoted"'}


def arguments_events(pieces: list[str]) -> list[bytes]:
    address = {"item_id": "i", "output_index": 0}
    return [
        event({"type": "response.function_call_arguments.delta", "sequence_number": number, **address, "delta": piece})
        for number, piece in enumerate(pieces)
    ]


def tool_events(pieces: list[str]) -> list[bytes]:
    calls = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    return [event(payload) for payload in chat_chunks(calls)]


def all_splits(text: str) -> list[list[str]]:
    return [list(text), [text], *([text[:start], text[start:]] for start in range(1, len(text)))]


@both_modes
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_escapes_in_streamed_arguments_are_decoded_at_any_split(arguments: str, mode: Mode) -> None:
    for pieces in all_splits(arguments):
        for events in (arguments_events(pieces), tool_events(pieces)):
            outcome = run(guards(BLOCK, mode=mode).stream("responses"), events)
            assert outcome.blocked is not None
            assert b"LOC" not in outcome.body
            assert b"0042" not in outcome.body


@both_modes
def test_escaped_match_is_masked_in_streamed_arguments(mode: Mode) -> None:
    arguments = r'{"to":"\u0061@b.example","n":"é \u4e16 c@d.example."}'
    expected = r'{"to":"[EMAIL_REDACTED]","n":"é \u4e16 [EMAIL_REDACTED]."}'
    for pieces in all_splits(arguments):
        guard = guards(pii("email"), mode=mode).stream("responses")
        outcome = run(guard, arguments_events(pieces))
        assert outcome.blocked is None
        assert "".join(payload["delta"] for payload in outcome.payloads) == expected
        assert guard is not None
        assert [(hit.action, hit.count) for hit in guard.hits] == [("masked", 2)]


@both_modes
def test_clean_streamed_arguments_are_unchanged(mode: Mode) -> None:
    for pieces in all_splits(r'{"a":"\u00e9\n\ud83d\ude00","b":"BLOC\u004b"}'):
        events = arguments_events(pieces)
        assert run(guards(BLOCK, pii("email"), mode=mode).stream("responses"), events).body == b"".join(events)


# -- SSE lines other than data --------------------------------------------------------------------------------------------

NON_DATA = {
    "plain JSON": b'{"output":[{"content":[{"text":"BLOCKME"}]}]}',
    "plain JSON with an escape": b'{"output":[{"content":[{"text":"\\u0042LOCKME"}]}]}\n',
    "no field": b"BLOCKME\n\n",
    "a comment": b": BLOCKME\n\n",
    "an event name": b"event: BLOCKME\ndata: {}\n\n",
    "an id": b"id: BLOCKME\ndata: {}\n\n",
    "an unknown field": b"words: BLOCKME\r\n\r\n",
    "the last line": b"data: {}\n\n: BLOCKME",
    "after another comment": b": ping\n: BLOCKME\ndata: {}\n\n",
}


@both_modes
@pytest.mark.parametrize("body", NON_DATA.values(), ids=NON_DATA)
def test_lines_other_than_data_are_not_released_if_a_guardrail_enforces(body: bytes, mode: Mode) -> None:
    outcome = run(guards(BLOCK, mode=mode).stream("responses"), [body])
    assert outcome.blocked is None
    assert outcome.body == (b"data: {}\n\n" if b"data: {}" in body else b"")
    monitored = guards(keyword("BLOCKME", enforcement="monitor")).stream("responses")
    assert run(monitored, [body]).body[: len(body)] == body
    assert monitored is not None
    assert [hit.action for hit in monitored.hits] == ["would_block"]


@both_modes
def test_event_line_is_kept_if_it_repeats_the_type(mode: Mode) -> None:
    body = b'event: BLOCKME\n: ping\ndata: {"type":"BLOCKME"}\n\n'
    kept = body.replace(b": ping\n", b"")
    assert run(guards(BLOCK, mode=mode).stream("chat"), [body]).body == kept
    other = body.replace(b'"BLOCKME"', b'"x"')
    outcome = run(guards(BLOCK, mode=mode).stream("chat"), [body, other])
    assert outcome.body == kept + b'data: {"type":"x"}\n\n'


@both_modes
def test_protocol_values_are_not_inspected(mode: Mode) -> None:
    body = b'event: response.created\ndata: {"type":"response.created"}\n\nevent: error\ndata: {"x":"y"}\n\n'
    assert run(guards(keyword("event", "created", "error", "id"), mode=mode).stream("responses"), [body]).body == body


@pytest.mark.parametrize("replacement", ['X"\\X', '\\a"', "<b>"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"q":"see EMP-123456 now"}', {"q": "see %s now"}),
        (' {"q":"C:\\\\p, EMP\\u002d123456"}', {"q": "C:\\p, %s"}),
        ('["EMP-123456", "\\u00e9 EMP-123456"]', ["%s", "é %s"]),
    ],
)
def test_replacement_is_escaped_for_its_json_level(before: str, after: Any, replacement: str) -> None:
    pattern = Pattern(kind="regex", value=r"EMP-\d{6}", name="e", action="mask", replacement=replacement)
    spec = pii(patterns=[pattern])
    expected = json.loads(json.dumps(after).replace("%s", json.dumps(replacement)[1:-1]))
    whole = json.loads(masked(json.dumps({"arguments": before}).encode(), spec, reply=True))
    assert json.loads(whole["arguments"]) == expected
    for size in (1, 3, 100):
        pieces = [before[start : start + size] for start in range(0, len(before), size)]
        deltas = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
        for mode in MODES:
            guard = guards(spec, mode=mode, max_lengths={"private": 10}).stream("chat")
            payloads = run(guard, [event(payload) for payload in chat_chunks(deltas)]).payloads
            calls = [call for chunk in payloads for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
            assert json.loads("".join(call["function"]["arguments"] for call in calls)) == expected
    plain = masked(b'{"text":"EMP-123456"}', spec, reply=True)
    assert json.loads(plain) == {"text": replacement}
