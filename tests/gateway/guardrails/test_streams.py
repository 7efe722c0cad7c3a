"""Stream inspection in both modes and with monitoring: what is released, and how a block ends a stream."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import ResponseFailedEvent

from penstock.gateway.guardrails import block_event, streams
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.gateway.routes import Route
from support.guardrail_streams import (
    Outcome,
    chat_chunks,
    chat_text,
    delta_text,
    event,
    guards,
    keyword,
    pii,
    response_events,
    run,
    split_reads,
    wire,
)

Mode = Literal["buffer", "window"]
BLOCK = keyword("FORBIDDEN")
both_modes = pytest.mark.parametrize("mode", ["buffer", "window"])


def outcome_of(
    payloads: list[Any], *specs: GuardrailSpec, mode: Mode, route: Route = "responses", done: bool = False
) -> Outcome:
    return run(guards(*specs, mode=mode).stream(route), split_reads(wire(payloads, done=done)))


@both_modes
def test_clean_stream_is_unchanged(mode: Mode) -> None:
    body = wire(response_events(["Hello ", "for", "bid", " me"]), done=True)
    outcome = run(guards(BLOCK, mode=mode).stream("responses"), split_reads(body))
    assert outcome.blocked is None
    assert outcome.body == body


@both_modes
def test_literal_split_over_two_deltas_blocks_and_is_not_released(mode: Mode) -> None:
    outcome = outcome_of(response_events(["Hello FOR", "BIDden", " end"]), BLOCK, mode=mode)
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail == "words"
    assert outcome.body == b""


def response_event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 1, "output_index": 0, "item_id": "i", **fields}


def terminal_event(kind: str, *output: dict[str, Any]) -> dict[str, Any]:
    return response_event(kind, response={"id": "r", "object": "response", "output": list(output)})


CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": '{"q": "FORBIDDEN"}'}
EVENTS: dict[str, list[Any]] = {
    "function call in the last event": [terminal_event("completed", CALL)],
    "incomplete": [terminal_event("incomplete", CALL)],
    "failed": [terminal_event("failed", CALL)],
    "arguments, two deltas, no end": [
        response_event("function_call_arguments.delta", delta='{"q": "FORB'),
        response_event("function_call_arguments.delta", delta='IDDEN"}'),
    ],
    "mcp arguments": [
        response_event("mcp_call_arguments.delta", delta="FORB"),
        response_event("mcp_call_arguments.delta", delta="IDDEN"),
    ],
    "custom tool input": [
        response_event("custom_tool_call_input.delta", delta="FORBI"),
        response_event("custom_tool_call_input.delta", delta="DDEN"),
    ],
    "code": [response_event("code_interpreter_call_code.delta", delta="FORBIDDEN")],
    "refusal": [response_event("refusal.delta", content_index=0, delta="FORBIDDEN")],
    "reasoning": [response_event("reasoning_text.delta", content_index=0, delta="FORBIDDEN")],
    "summary": [response_event("reasoning_summary_text.delta", summary_index=0, delta="FORBIDDEN")],
    "transcript": [response_event("audio.transcript.delta", delta="FORBIDDEN")],
    "delta that is an object": [
        response_event("shell_call_output_content.delta", command_index=0, delta={"stdout": "FORB"}),
        response_event("shell_call_output_content.delta", command_index=0, delta={"stdout": "IDDEN"}),
    ],
    "unknown delta": [response_event("invented.delta", delta="FORB"), response_event("invented.delta", delta="IDDEN")],
    "text.done without deltas": [response_event("output_text.done", content_index=0, text="FORBIDDEN")],
    "arguments.done without deltas": [response_event("function_call_arguments.done", arguments="FORBIDDEN")],
    "refusal.done": [response_event("refusal.done", content_index=0, refusal="FORBIDDEN")],
    "summary part": [
        response_event(
            "reasoning_summary_part.done", summary_index=0, part={"type": "summary_text", "text": "FORBIDDEN"}
        )
    ],
    "item with a name": [response_event("output_item.added", item={**CALL, "name": "forbidden", "arguments": ""})],
    "reasoning item": [
        response_event("output_item.done", item={"type": "reasoning", "summary": [{"text": "FORBIDDEN"}]})
    ],
    "annotation": [
        response_event(
            "output_text.annotation.added", annotation={"type": "url_citation", "title": "FORBIDDEN", "url": "x"}
        )
    ],
    "a part with initial text": [
        response_event("content_part.added", content_index=0, part={"type": "output_text", "text": "FORB"}),
        response_event("output_text.delta", content_index=0, delta="IDDEN"),
    ],
    "an item with initial arguments": [
        response_event("output_item.added", item={**CALL, "arguments": '"FORB'}),
        response_event("function_call_arguments.delta", delta='IDDEN"'),
    ],
    "another dialect": [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("FORB", "IDDEN")
    ],
    "chunks of a chat": [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("FORB", "IDDEN")],
    "a delta in an event of another kind": [response_event("invented", delta="FORBIDDEN")],
    "a field next to the delta": [
        response_event("output_text.delta", content_index=0, delta="x", snapshot="FORBIDDEN")
    ],
    "error": [{"type": "error", "message": "FORBIDDEN"}],
    "a type": [response_event("a FORBIDDEN one")],
    "a type of a delta": [response_event("a FORBIDDEN one.delta", delta="x")],
    "two interleaved texts": [
        response_event("output_text.delta", content_index=0, delta="FORB"),
        response_event("output_text.delta", content_index=1, delta="x"),
        response_event("output_text.delta", content_index=0, delta="IDDEN"),
    ],
}


@both_modes
@pytest.mark.parametrize("payloads", EVENTS.values(), ids=EVENTS)
def test_every_text_of_a_response_stream_is_inspected(payloads: list[Any], mode: Mode) -> None:
    outcome = outcome_of(payloads, BLOCK, mode=mode)
    assert outcome.blocked is not None
    assert outcome.body == b""


def choice(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, **fields}]}


def tool_delta(index: int, **function: str) -> dict[str, Any]:
    return choice(delta={"tool_calls": [{"index": index, "function": function}]})


def tool_call(arguments: Any) -> dict[str, Any]:
    return choice(delta={"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": arguments}}]})


CHUNKS: dict[str, list[Any]] = {
    "content": chat_chunks(["Hi FOR", "BID", "DEN"]),
    "refusal": chat_chunks([{"refusal": "FORB"}, {"refusal": "IDDEN"}]),
    "reasoning": chat_chunks([{"reasoning_content": "FORB"}, {"reasoning_content": "IDDEN"}]),
    "two fields in each chunk": chat_chunks(
        [{"reasoning": "FORB", "reasoning_content": "FORB"}, {"reasoning": "IDDEN", "reasoning_content": "IDDEN"}]
    ),
    "tool name": [tool_delta(0, name="forbidden")],
    "tool arguments": [
        tool_delta(0, name="f", arguments="{"),
        tool_delta(0, arguments='"FORB'),
        tool_delta(0, arguments='IDDEN"'),
    ],
    "old function call": chat_chunks(
        [{"function_call": {"arguments": "FORB"}}, {"function_call": {"arguments": "IDDEN"}}]
    ),
    "two interleaved choices": [
        choice(0, delta={"content": "f"}),
        choice(1, delta={"content": "FORB"}),
        choice(0, delta={"content": "le"}),
        choice(1, delta={"content": "IDDEN"}),
    ],
    "content parts": [
        choice(delta={"content": [{"type": "text", "text": "FORB"}]}),
        choice(delta={"content": [{"type": "text", "text": "IDDEN"}]}),
    ],
    "arguments that are an object": [tool_call({"customer_id": "FORBIDDEN"})],
    "object arguments in two deltas": [tool_call({"id": ["FORB"]}), tool_call({"id": ["IDDEN"]})],
    "a key of arguments": [tool_call({"a": [{"forbidden": 1}]})],
    "a role": chat_chunks([{"role": "a FORBIDDEN one", "content": "x"}]),
    "a role next to a tool call": chat_chunks([{"role": "a FORBIDDEN one", "tool_calls": []}]),
    "a finish reason": [choice(delta={}, finish_reason="a FORBIDDEN one")],
    "a stop reason": [choice(delta={}, finish_reason="stop", stop_reason="a FORBIDDEN one")],
    "the kind of object": [{"object": "a FORBIDDEN one", "choices": []}],
    "completion": [choice(text="FORB", logprobs=None), choice(text="IDDEN")],
    "text beside a delta": [choice(delta={"content": "x"}, text="FORB"), choice(delta={"content": "y"}, text="IDDEN")],
    "whole message": [choice(message={"role": "assistant", "content": "FORBIDDEN"}, finish_reason="stop")],
    "error": [{"error": {"message": "FORBIDDEN"}}],
    "a list": [["FORBIDDEN"]],
    "another dialect": [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("FORB", "IDDEN")
    ],
    "a response's events": [
        response_event("output_text.delta", delta="FORB"),
        response_event("output_text.delta", delta="IDDEN"),
    ],
}


@both_modes
@pytest.mark.parametrize("payloads", CHUNKS.values(), ids=CHUNKS)
def test_every_text_of_a_chat_stream_is_inspected(payloads: list[Any], mode: Mode) -> None:
    outcome = outcome_of(payloads, BLOCK, mode=mode, route="chat", done=True)
    assert outcome.blocked is not None
    assert b"FOR" not in outcome.body


@both_modes
def test_integers_and_keys_of_object_arguments_are_masked(mode: Mode) -> None:
    card = 4111111111111111
    payloads = [tool_call({"n": card, "list": [card, 5], str(card): "x"}), choice(delta={"content": card}, text=card)]
    payloads.append(choice(delta={}, finish_reason="stop"))
    outcome = outcome_of(payloads, pii("bank_card"), mode=mode, route="chat")
    assert str(card).encode() not in outcome.body
    call, content, _ = outcome.payloads
    token = "[BANK_CARD_REDACTED]"
    assert call["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == {
        "n": token,
        "list": [token, 5],
        token: "x",
    }
    assert content["choices"][0]["delta"]["content"] == token
    assert content["choices"][0]["text"] == token


@both_modes
def test_unknown_members_around_a_piece_are_masked(mode: Mode) -> None:
    address = "joe@example.com"
    block = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}, "note": address}
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}, "note": address}
    streams: list[tuple[Route, Any]] = [
        ("messages", block),
        ("messages", start),
        ("chat", {**choice(delta={"content": "x"}), "note": address}),
        ("chat", choice(delta={"content": "x"}, note=address)),
        ("responses", response_event("output_text.delta", delta="x", note=address)),
    ]
    for route, payload in streams:
        outcome = outcome_of([payload, payload], pii("email"), mode=mode, route=route)
        assert outcome.body.count(b"[EMAIL_REDACTED]") == 2
        assert address.encode() not in outcome.body


@both_modes
def test_empty_finish_reason_does_not_end_a_text(mode: Mode) -> None:
    payloads = [choice(delta={"content": text}, finish_reason="") for text in ("all FORB", "IDDEN")]
    outcome = outcome_of([*chat_chunks(["Hello. "], finish=False), *payloads], BLOCK, mode=mode, route="chat")
    assert outcome.blocked is not None
    assert b"FORB" not in outcome.body


@both_modes
def test_long_literal_is_found_at_any_split(mode: Mode) -> None:
    literal = "".join(chr(97 + index * index % 26) for index in range(100))
    for size in (1, 7, 33, 99):
        deltas = [f"Hello. {literal}!"[start : start + size] for start in range(0, 108, size)]
        outcome = outcome_of(chat_chunks(deltas), keyword(literal, literal[:50] + "!"), mode=mode, route="chat")
        assert outcome.blocked is not None
        assert chat_text(outcome.payloads).strip() in "Hello."
        clean = [delta.replace("!", "") for delta in deltas[: 60 // size]]
        body = wire(chat_chunks(clean))
        assert run(guards(keyword(literal), mode=mode).stream("chat"), [body]).body == body


@both_modes
def test_data_that_is_not_json_is_inspected(mode: Mode) -> None:
    body = b"data: hello\n\ndata: FORB\n\ndata: le\n\ndata: [DONE]\n\n"
    assert run(guards(BLOCK, mode=mode).stream("chat"), [body]).body == body
    blocked = run(guards(BLOCK, mode=mode).stream("chat"), [body.replace(b"le", b"IDDEN")])
    assert blocked.blocked is not None
    assert blocked.body == b""


@both_modes
@pytest.mark.parametrize(("deltas", "text"), [(["FORBI", "DDEN"], "clean"), (["cle", "an"], "FORBIDDEN")])
def test_match_in_only_the_deltas_or_only_the_last_event_blocks(mode: Mode, deltas: list[str], text: str) -> None:
    payloads = [payload for payload in response_events(deltas, text=text) if not payload["type"].endswith("done")]
    outcome = outcome_of(payloads, BLOCK, mode=mode)
    assert outcome.blocked is not None
    assert b"FORB" not in outcome.body.replace(b"FORBIDDEN things", b"")


SSE_FORMS = {
    "crlf": wire(response_events(["FORBI", "DDEN"]), end="\r\n"),
    "cr": wire(response_events(["FORBI", "DDEN"]), end="\r"),
    "byte-order mark": b"\xef\xbb\xbf" + event(response_event("output_text.done", text="FORBIDDEN"), name=False),
    "comments between": b": ping\n\n".join(event(p) for p in response_events(["FORBI", "DDEN"])),
    "several data lines": b"".join(
        b"data:" + json.dumps(p, indent=1).replace("\n", "\ndata:").encode() + b"\nid: 1\n\n"
        for p in response_events(["FORBI", "DDEN"])
    ),
    "no last blank line": wire(response_events(["FORBI", "DDEN"])).rstrip(b"\n"),
    "escapes": event(response_event("output_text.delta", delta="é")).replace(b"\\u00e9", b"\\u0046ORBIDDEN"),
}


@both_modes
@pytest.mark.parametrize("body", SSE_FORMS.values(), ids=SSE_FORMS)
def test_every_sse_form_is_inspected_at_any_split(body: bytes, mode: Mode) -> None:
    guard = guards(BLOCK, mode=mode)
    for sizes in ((1,), (2, 5), (len(body),)):
        outcome = run(guard.stream("responses"), split_reads(body, sizes))
        assert outcome.blocked is not None
        assert b"DDEN" not in outcome.body
        clean = body.replace(b"FORBI", b"for i").replace(b"DDEN", b"  me").replace(b"\\u0046ORB", b"\\u0046oot")
        kept = clean.replace(b": ping\n\n", b"").replace(b"\nid: 1\n", b"\n")
        assert run(guard.stream("responses"), split_reads(clean, sizes)).body == kept


@both_modes
def test_characters_split_over_reads_and_events_are_joined(mode: Mode) -> None:
    body = b"".join(
        f"data: {json.dumps(p, ensure_ascii=False)}\n\n".encode() for p in response_events(["这是", "禁", "词。"])
    )
    for size in (1, 2, 3):
        assert (
            run(guards(keyword("禁词"), mode=mode).stream("responses"), split_reads(body, (size,))).blocked is not None
        )
        assert run(guards(keyword("禁止"), mode=mode).stream("responses"), split_reads(body, (size,))).body == body
    split_pair = [event(response_event("output_text.delta", delta=delta)) for delta in ("x\ud83d", "\ude00y")]
    assert run(guards(keyword("😀Y"), mode=mode).stream("responses"), split_pair).blocked is not None
    assert run(guards(keyword("😀Z"), mode=mode).stream("responses"), split_pair).body == b"".join(split_pair)


@both_modes
def test_truncated_last_event_is_not_released(mode: Mode) -> None:
    events = [event(payload) for payload in response_events(["Hello ", "there"])[:5]]
    outcome = run(guards(BLOCK, mode=mode).stream("responses"), [*events[:4], events[4][:-12]])
    assert outcome.body == b"".join(events[:4])


def test_stream_larger_than_the_buffer_is_blocked() -> None:
    outcome = outcome_of(response_events(["x" * 300_000]), BLOCK, mode="buffer")
    assert outcome.blocked is not None
    assert outcome.blocked.guardrail is None
    assert outcome.body == b""
    assert outcome.blocked.too_long


@pytest.mark.parametrize("mode", ["buffer", "window"])
def test_oversized_event_is_blocked_before_its_end(mode: Mode) -> None:
    guard = guards(BLOCK, mode=mode, max_buffer_bytes=1000).stream("chat")
    assert guard is not None
    size = guard.max_event_bytes + 1000
    outcome = run(guard, split_reads(b"data: " + b"x" * size, (size // 4,)))
    assert outcome.blocked is not None
    assert (outcome.blocked.guardrail, outcome.body) == (None, b"")


def test_enforced_regex_without_max_length_forces_buffering() -> None:
    def releases(*specs: GuardrailSpec, **more: Any) -> list[bytes]:
        guard = guards(*specs, mode="window", **more).stream("chat")
        return run(guard, [event(payload) for payload in chat_chunks(["a ", "b ", "c "])]).releases

    open_ended = keyword(regexes=["x+y"])
    assert not any(releases(open_ended)[:-1])
    assert not any(releases(BLOCK, open_ended)[:-1])
    assert any(releases(BLOCK, keyword(name="n", regexes=["x+y"]), max_lengths={"n": 2})[:-1])
    assert any(releases(keyword("z", name="n", regexes=["x+y"]), max_lengths={"n": 2})[:-1])
    assert any(releases(BLOCK, keyword(regexes=["x+y"], enforcement="monitor"))[:-1])


def test_monitored_stream_passes_unheld_and_is_counted() -> None:
    specs = [
        keyword("forbidden", name="literal", enforcement="monitor"),
        keyword(name="regex", regexes=[r"begin .* end"], enforcement="monitor"),
        pii("email", enforcement="monitor"),
        pii("us_ssn", action="block", name="blocker", enforcement="monitor"),
        keyword("nothing", name="silent", enforcement="monitor"),
    ]
    deltas = ["FORB", "IDDEN begin ", "x" * 300_000, " end joe@exam", "ple.com 123-45-6789"]
    body = wire(response_events(deltas))
    data = split_reads(body, (100, 40_000))
    guard = guards(*specs).stream("responses")
    assert guard is not None
    assert not guard.holds
    assert run(guard, data).releases == [*data, b""]
    assert [(hit.guardrail, hit.hook, hit.action, hit.count) for hit in guard.hits] == [
        ("literal", "output", "would_block", 1),
        ("regex", "output", "would_block", 1),
        ("private", "output", "would_mask", 1),
        ("blocker", "output", "would_block", 1),
    ]


def test_monitored_stream_over_a_limit_is_recorded_as_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_MONITORED_BYTES", 1000)
    guard = guards(keyword("forbidden", enforcement="monitor"), pii("email", enforcement="monitor")).stream("responses")
    assert guard is not None
    deltas = ["FORBIDDEN", "x" * 2000, "joe@example.com"]
    body = b"".join(event(response_event("output_text.delta", delta=delta)) for delta in deltas)
    assert run(guard, split_reads(body, (500,))).body == body
    assert [(hit.guardrail, hit.action, hit.count) for hit in guard.hits] == [
        ("words", "timed_out", 1),
        ("words", "would_block", 1),
        ("private", "timed_out", 1),
    ]


@both_modes
def test_stream_is_masked_and_each_match_counted_once(mode: Mode) -> None:
    deltas = ["Write to ", "joe@", "exam", "ple.com", " or jane@example.org", "."]
    expected = "Write to [EMAIL_REDACTED] or [EMAIL_REDACTED]."
    guard = guards(pii("email"), mode=mode).stream("responses")
    outcome = run(guard, split_reads(wire(response_events(deltas))))
    assert guard is not None
    assert outcome.blocked is None
    assert b"@" not in outcome.body
    assert delta_text(outcome.payloads) == expected
    assert [payload["sequence_number"] for payload in outcome.payloads] == list(range(len(deltas) + 7))
    assert outcome.payloads[-4]["text"] == expected
    assert outcome.payloads[-3]["part"]["text"] == expected
    assert outcome.payloads[-2]["item"]["content"][0]["text"] == expected
    assert outcome.payloads[-1]["response"]["output"][0]["content"][0]["text"] == expected
    assert [(hit.action, hit.count) for hit in guard.hits] == [("masked", 2)]


@both_modes
def test_masking_a_chat_stream_removes_logprobs(mode: Mode) -> None:
    chunks = chat_chunks(["Call 138", "0013", "8000", " now"])
    for chunk in chunks[1:5]:
        chunk["choices"][0]["logprobs"] = {"content": [{"token": chunk["choices"][0]["delta"]["content"]}]}
    outcome = outcome_of(chunks, pii("china_mobile"), mode=mode, route="chat", done=True)
    assert chat_text(outcome.payloads) == "Call [CHINA_MOBILE_REDACTED] now"
    assert b"0013" not in outcome.body
    assert b'"token"' not in outcome.body
    assert outcome.body.endswith(b"data: [DONE]\n\n")


@both_modes
def test_token_ids_of_a_stream_do_not_undo_a_mask(mode: Mode) -> None:
    chunks = chat_chunks(["to joe@", "example.com", " now"])
    for number, chunk in enumerate(chunks):
        chunk["choices"][0]["token_ids"] = [4223, number]
    chunks[0]["prompt_token_ids"] = [4223]
    outcome = outcome_of(chunks, pii("email"), mode=mode, route="chat")
    assert chat_text(outcome.payloads) == "to [EMAIL_REDACTED] now"
    assert b"4223" not in outcome.body


def block_events(start: str, *deltas: str, kind: str = "text", index: int = 0) -> list[Any]:
    delta = {"text": "text_delta", "thinking": "thinking_delta"}[kind]
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": kind, kind: start}},
        *({"type": "content_block_delta", "index": index, "delta": {"type": delta, kind: text}} for text in deltas),
        {"type": "content_block_stop", "index": index},
    ]


@both_modes
@pytest.mark.parametrize(
    "payloads",
    [
        block_events("so FORB", "IDDEN"),
        block_events("F", "O", "RBIDDEN now"),
        block_events("FORB", "IDDEN", kind="thinking"),
        [*block_events("so FORB"), *block_events("IDDEN", index=1)],
        [*block_events("so FORB"), *block_events("", "IDDEN", index=1)],
    ],
    ids=["one delta", "two deltas", "thinking", "two blocks without deltas", "two blocks"],
)
def test_text_at_the_start_of_a_content_block_continues_in_its_deltas(payloads: list[Any], mode: Mode) -> None:
    outcome = outcome_of(payloads, BLOCK, mode=mode, route="messages")
    assert outcome.blocked is not None
    assert b"FORB" not in outcome.body


@both_modes
def test_mask_over_the_start_of_a_content_block_and_its_delta(mode: Mode) -> None:
    outcome = outcome_of(block_events("to joe@", "example.com now"), pii("email"), mode=mode, route="messages")
    assert (
        outcome.payloads[0]["content_block"]["text"] + outcome.payloads[1]["delta"]["text"] == "to [EMAIL_REDACTED] now"
    )


@both_modes
def test_masking_keeps_the_sse_frame(mode: Mode) -> None:
    payload = json.dumps(response_event("output_text.delta", delta="a@b.example "), indent=0).replace(
        "\n", "\r\ndata: "
    )
    body = f"\ufeff: note\r\nevent: response.output_text.delta\r\nid: 7\r\ndata: {payload}\r\n\r\n".encode()
    out = run(guards(pii("email"), mode=mode).stream("responses"), [body]).body.decode()
    assert out.startswith("\ufeffevent: response.output_text.delta\r\ndata: {")
    assert out.endswith('data: "delta": "[EMAIL_REDACTED] "\r\ndata: }\r\n\r\n')
    plain = run(guards(pii("email"), mode=mode).stream("chat"), [b"data: a@b.exa\n\n", b"data: mple x\n\n"]).body
    assert plain == b"data: [EMAIL_REDACTED]\n\ndata:  x\n\n"


class Response:
    """The part of an HTTP response that `openai.Stream` uses."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.request = None

    def iter_bytes(self) -> Any:
        return iter([self.body])

    def close(self) -> None:
        pass


def test_block_event_is_understood_by_the_openai_package() -> None:
    data = block_event("responses", "words", "resp_1", 7, model="m-1")
    assert data.endswith(b"\n\n")
    name, payload = data.decode().strip().split("\n")
    assert name == "event: response.failed"
    failed = ResponseFailedEvent.construct(**json.loads(payload.removeprefix("data: ")))
    parsed = openai.Stream(cast_to=ResponseFailedEvent, response=Response(data), client=openai.OpenAI(api_key="x"))  # type: ignore[arg-type]
    for event_object in (failed, next(iter(parsed))):
        assert (event_object.type, event_object.sequence_number) == ("response.failed", 7)
        assert (event_object.response.id, event_object.response.status, event_object.response.model) == (
            "resp_1",
            "failed",
            "m-1",
        )
        assert event_object.response.error is not None
        assert event_object.response.error.code == "content_filter"
        assert event_object.response.error.message == "The response was blocked by content policy (guardrail 'words')."
        assert event_object.response.output_text == ""
    chat = block_event("chat", None, None, 0)
    stream = openai.Stream(cast_to=ResponseFailedEvent, response=Response(chat), client=openai.OpenAI(api_key="x"))  # type: ignore[arg-type]
    with pytest.raises(openai.APIError) as caught:
        next(iter(stream))
    assert caught.value.type == "content_filter"
    assert caught.value.message == "The response was blocked by content policy."


def test_block_event_continues_the_sequence_of_the_stream() -> None:
    guard = guards(BLOCK, mode="window").stream("responses")
    assert guard is not None
    events = [event(payload) for payload in response_events(["Hello. ", "More. ", "FORBIDDEN"])]
    outcome = run(guard, events)
    assert outcome.blocked is not None
    assert outcome.body == b"".join(events[:5])
    assert (guard.response_id, guard.model, guard.next_sequence) == ("resp_1", "m-1", 5)
    end = json.loads(guard.block_event(outcome.blocked).split(b"data: ")[1])
    assert (end["sequence_number"], end["response"]["id"]) == (5, "resp_1")
    assert [(hit.action, hit.count) for hit in guard.hits] == [("blocked", 1)]
    assert "FORBIDDEN" not in repr(outcome.blocked) + repr(outcome.blocked.__context__)
