"""Streams and unstreamed replies of the Responses API."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent

from penstock.endpoints.reply import Reply, Usage
from penstock.endpoints.responses import Responses
from penstock.endpoints.responses_events import EVENTS
from penstock.endpoints.responses_replies import _StreamReader
from support.responses_api import USAGE, completed, created, deltas, event, message, response

ENDPOINT = Responses()


def read(body: bytes, *, timed: bool = True) -> Reply:
    return ENDPOINT.read_stream(body, timed=timed)


def read_by_event(body: bytes) -> Reply:
    reader = _StreamReader()
    reader.add_body(body)
    return reader.finish(is_blank=False)


def attributes(reply: Reply) -> tuple[Any, ...]:
    return (
        reply.texts,
        reply.ends,
        reply.reasoning,
        reply.outputs,
        reply.reasonings,
        reply.finish,
        reply.usage,
        reply.model,
        reply.id,
        [bytes(item) for item in reply.items],
        reply.warnings,
        reply.failure,
        reply.done,
    )


def test_stream_of_text_is_read() -> None:
    body = created() + deltas("Two", " words", ".") + completed(message("Two words."))
    reply = read(body)
    assert reply.texts == ["Two", " words", "."]
    assert [body[:end].endswith(b"\n\n") for end in reply.ends] == [True] * 3
    assert reply.outputs == ["Two words."]
    assert (reply.id, reply.model, reply.finish, reply.done) == ("resp_1", "m", ["completed"], True)
    assert reply.usage == Usage(prompt=11, completion=7, total=18, reasoning=2, cache_read=3)
    assert reply.failure is None
    assert reply.warnings == {}
    assert reply.reasoning is None


@pytest.mark.parametrize(
    ("kind", "text_field", "is_reasoning"),
    [
        ("output_text", "text", False),
        ("refusal", "refusal", False),
        ("reasoning_text", "text", True),
        ("reasoning_summary_text", "text", True),
        ("function_call_arguments", "arguments", False),
        ("mcp_call_arguments", "arguments", False),
        ("custom_tool_call_input", "input", False),
        ("code_interpreter_call_code", "code", False),
    ],
)
def test_deltas_of_every_kind_are_tokens(kind: str, text_field: str, is_reasoning: bool) -> None:
    done = event(f"response.{kind}.done", output_index=0, content_index=0, summary_index=0, **{text_field: "ab"})
    if "call" in kind:
        done = event(f"response.{kind}.done", output_index=0, **{text_field: "ab"})
    reply = read(created() + deltas("a", "b", kind=kind) + done + completed())
    assert reply.texts == ["a", "b"]
    assert (reply.reasoning or [False, False]) == [is_reasoning, is_reasoning]
    assert (reply.reasonings if is_reasoning else reply.outputs) == ["ab"]
    assert reply.warnings == {}


def test_reasoning_and_text_keep_their_order() -> None:
    body = deltas("I", " think", kind="reasoning_summary_text") + deltas("So", " be", " it", output_index=1)
    reply = read(created() + body + completed())
    assert reply.texts == ["I", " think", "So", " be", " it"]
    assert reply.reasoning == [True, True, False, False, False]
    assert (reply.reasonings, reply.outputs) == (["I think"], ["So be it"])


def test_function_name_is_part_of_the_output() -> None:
    call = {"id": "fc_1", "type": "function_call", "name": "look_up", "arguments": '{"a":1}', "call_id": "c"}
    streamed = deltas('{"a"', ":1}", kind="function_call_arguments")
    assert read(created() + streamed + completed(call)).outputs == ['look_up{"a":1}']
    done = event("response.output_item.done", output_index=0, item=call)
    assert read(created() + streamed + done + completed()).outputs == ['look_up{"a":1}']
    whole = ENDPOINT.read_body(json.dumps(response(output=[call], usage=USAGE)).encode())
    assert whole.outputs == ['look_up{"a":1}']


def test_progress_events_are_no_tokens() -> None:
    progress = [name for name, event_type in EVENTS.items() if event_type.role == "progress"]
    body = created() + b"".join(event(name, output_index=0) for name in progress) + deltas("x", "y") + completed()
    reply = read(body)
    assert reply.texts == ["x", "y"]
    assert reply.warnings == {}
    assert reply.failure is None


def test_every_event_type_of_the_openai_package_is_known() -> None:
    union = get_args(ResponseStreamEvent)[0]
    types = {get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(union)}
    assert len(types) > 50
    assert types <= EVENTS.keys()


def test_events_of_unknown_types_are_warnings() -> None:
    unknown = event("response.telepathy.delta", delta="?")
    reply = read(
        created() + unknown + deltas("x", "y") + unknown + completed(message("xy")) + event("vendor.stats", a=1)
    )
    assert reply.outputs == ["xy"]
    assert reply.failure is None
    assert reply.warnings == {
        "Events of an unknown type, response.telepathy.delta": 2,
        "Events of an unknown type, vendor.stats": 1,
    }


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (b"", "TruncatedStream", "without response.completed or another terminal event"),
        (
            event("response.failed", response=response("failed", error={"code": "server_error", "message": "Oops"})),
            "ResponseFailed",
            "The response failed: Oops (server_error)",
        ),
        (event("response.failed", response=response("failed")), "ResponseFailed", "no error is given"),
        (
            event("error", code="rate_limit_exceeded", message="Slow down", param=None),
            "ErrorEvent",
            "error event: Slow down (rate_limit_exceeded)",
        ),
        (b'event: error\ndata: {"message": "No type", "code": null}\n\n', "ErrorEvent", "error event: No type"),
        (b'data: {"error": {"message": "Bare", "code": 500}}\n\n', "ErrorObject", "Bare (500)"),
        (
            event(
                "response.incomplete", response=response("incomplete", incomplete_details={"reason": "content_filter"})
            ),
            "ResponseIncomplete",
            "The response is incomplete: content_filter.",
        ),
        (event("response.incomplete", response=response("incomplete")), "ResponseIncomplete", "no reason is given"),
        (event("response.completed", response=response("cancelled")), "ResponseNotCompleted", "the status 'cancelled'"),
        (b"event: response.completed\ndata: {bad\n\n", "MalformedEvent", "not JSON"),
    ],
)
def test_each_kind_of_failed_end_has_its_own_failure(end: bytes, kind: str, message: str) -> None:
    for head in (created() + deltas("a", "b"), created() + deltas("a")):
        failure = read(head + end).failure
        assert failure is not None
        assert failure.type == kind
        assert message in failure.message
        assert failure.owner == "server"


def test_stream_ended_by_the_length_limit_is_a_success() -> None:
    end = response(
        "incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=USAGE, output=[message("ab")]
    )
    reply = read(created() + deltas("a", "b") + event("response.incomplete", response=end))
    assert reply.failure is None
    assert reply.finish == ["max_output_tokens"]
    assert reply.usage is not None
    assert reply.usage.completion == 7


def test_stream_of_another_api_is_a_failure() -> None:
    failure = read(b'data: {"object":"chat.completion.chunk","choices":[]}\n\ndata: [DONE]\n\n').failure
    assert failure is not None
    assert failure.type == "NotResponses"


def test_empty_stream_is_not_judged_by_the_endpoint() -> None:
    assert read(b"").failure is None
    assert not read(b"").done


@pytest.mark.parametrize(
    ("end", "warning"),
    [
        (
            event("response.output_text.done", output_index=0, content_index=0, text="other"),
            "response.output_text.done with another text than the deltas before it",
        ),
        (
            event(
                "response.content_part.done",
                output_index=0,
                content_index=0,
                part={"type": "output_text", "text": "other"},
            ),
            "response.content_part.done with another text than the deltas before it",
        ),
        (
            event("response.output_item.done", output_index=0, item=message("other")),
            "response.output_item.done with another text than the deltas before it",
        ),
    ],
)
def test_done_text_that_differs_from_the_deltas_is_a_warning(end: bytes, warning: str) -> None:
    reply = read(created() + deltas("a", "b") + end + completed())
    assert reply.outputs == ["ab"]
    assert reply.failure is None
    assert reply.warnings == {warning: 1}


def test_terminal_text_that_differs_from_the_deltas_is_a_warning() -> None:
    reply = read(created() + deltas("a", "b") + completed(message("abc")))
    assert reply.outputs == ["ab"]
    assert reply.warnings == {"response.completed with another text than the deltas": 1}


def test_done_text_without_deltas_is_content() -> None:
    done = event("response.output_text.done", output_index=0, content_index=0, text="All at once")
    body = created() + done + completed(message("All at once"))
    reply = read(body)
    assert reply.texts == ["All at once"]
    assert reply.ends == [len(created() + done)]
    assert reply.warnings == {"Texts that came in response.output_text.done and not in deltas": 1}
    last = read(created() + completed(message("At the end")))
    assert last.texts == ["At the end"]
    assert last.warnings == {"Texts that came in response.completed and not in deltas": 1}


def test_different_indexes_in_deltas_and_done_do_not_double_the_text() -> None:
    done = event("response.output_text.done", output_index=3, content_index=1, text="ab")
    reply = read(created() + deltas("a", "b") + done + completed(message("ab")))
    assert reply.outputs == ["ab"]
    assert reply.warnings == {}


def test_alternating_deltas_of_two_texts_are_read() -> None:
    mixed = deltas("a") + deltas("x", output_index=1) + deltas("b") + deltas("y", output_index=1)
    ends = [
        event("response.output_text.done", output_index=n, content_index=0, text=t) for n, t in ((0, "ab"), (1, "xy"))
    ]
    reply = read(created() + mixed + b"".join(ends) + completed())
    assert reply.texts == ["a", "x", "b", "y"]
    assert reply.outputs == ["abxy"]
    assert reply.warnings == {}


def test_history_items_come_from_the_terminal_event_and_from_done_items() -> None:
    call = {"id": "fc_1", "type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    done = event("response.output_item.done", output_index=1, item=call)
    reply = read(created() + deltas("a", "b") + done + completed(message("ab")))
    assert [json.loads(bytes(item))["id"] for item in reply.items] == ["msg_1", "fc_1"]
    assert len(read(created() + deltas("a") + done + completed(message("a"), call)).items) == 2
    assert len(read(created() + deltas("a") + done + completed()).items) == 1


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_other_line_ends_and_missing_event_lines_are_accepted(named: bool, end: str) -> None:
    names = [("response.output_text.delta", {"delta": text}) for text in ("a", "", "b")]
    form: dict[str, Any] = {"named": named, "end": end}
    body = created(**form) + b": ping" + end.encode() * 2
    body += b"".join(event(name, output_index=0, content_index=0, **fields, **form) for name, fields in names)
    body += event("response.completed", response=response(output=[message("ab")]), **form)
    body += f"data: [DONE]{end}{end}".encode()
    reply = read(body)
    assert reply.texts == ["a", "b"]
    assert reply.failure is None
    assert reply.warnings == {}


def test_type_may_be_in_the_event_line_only() -> None:
    body = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n' * 2
    body += b'event: response.completed\ndata: {"response":{"status":"completed"}}\n\n'
    reply = read(body)
    assert reply.texts == ["a", "a"]
    assert reply.failure is None


def test_fields_of_wrong_type_are_left_out_one_by_one() -> None:
    delta = {"type": "response.output_text.delta", "delta": "a", "output_index": "0", "content_index": None}
    usage = {"input_tokens": "many", "output_tokens": 4, "output_tokens_details": None}
    end = {"type": "response.completed", "response": {**response(), "usage": usage, "output": None}}
    body = b"".join(b"data: " + json.dumps(data).encode() + b"\n\n" for data in (delta, delta, 5, end))
    reply = read(body)
    assert reply.texts == ["a", "a"]
    assert reply.failure is None
    assert reply.usage == Usage(completion=4)
    assert reply.warnings == {"Events of an unknown type, without a name": 1}


def test_lone_surrogates_are_replaced() -> None:
    body = b'data: {"type":"response.output_text.delta","delta":"\\ud83d"}\n\n' + completed()
    reply = read(body)
    assert reply.texts == ["�"]
    assert reply.failure is None


def test_event_with_two_objects_is_malformed() -> None:
    twice = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}'
    body = created() + twice + b',{"type":"response.output_text.delta","delta":"b"}\n\n' + twice + b"\n\n"
    failure = read(body + completed()).failure
    assert failure is not None
    assert failure.type == "MalformedEvent"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KINDS = st.sampled_from(
    ["output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments"]
)
RUN = st.tuples(KINDS, st.lists(TEXT, max_size=5), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.lists(RUN, max_size=5), st.booleans())
def test_reading_by_runs_agrees_with_reading_by_event(runs: list[tuple[str, list[str], int]], separated: bool) -> None:
    body = created()
    for kind, texts, index in runs:
        body += deltas(*texts, kind=kind, output_index=index, obfuscation="x" * (index * 2))
        if separated:
            body += event("response.content_part.added", output_index=index)
    body += completed(message("".join(t for kind, texts, _ in runs if kind == "output_text" for t in texts)))
    assert attributes(read(body)) == attributes(read_by_event(body))
    untimed = read(body, timed=False)
    assert untimed.texts == read_by_event(body).texts


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_read_without_an_exception(noise: bytes, position: int) -> None:
    whole = created() + deltas("a", "b", "c") + completed(message("abc"))
    position %= len(whole)
    for body in (noise, whole[:position] + noise + whole[position:], whole[:position], whole[position:]):
        read(body)
        ENDPOINT.read_body(body)


def test_unstreamed_reply_is_read() -> None:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": None}
    body = json.dumps(response(output=[thought, message("Yes.")], usage=USAGE)).encode()
    reply = ENDPOINT.read_body(body)
    assert (reply.outputs, reply.reasonings) == (["Yes."], ["Hm."])
    assert (reply.id, reply.model, reply.finish, reply.done) == ("resp_1", "m", ["completed"], True)
    assert reply.usage is not None
    assert reply.usage.reasoning == 2
    assert reply.texts == []


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"", "EmptyReply", "no body"),
        (b"<html>", "MalformedJSON", "'<html>'"),
        (b'{"error": {"message": "No model", "code": 404}}', "ErrorObject", "No model (404)"),
        (b'{"object": "list"}', "InvalidReply", "has no output"),
        (json.dumps(response("failed", error={"message": "Oops", "code": "x"})).encode(), "ResponseFailed", "Oops (x)"),
        (json.dumps(response("in_progress")).encode(), "ResponseNotCompleted", "the status 'in_progress'"),
        (
            json.dumps(response("incomplete", incomplete_details={"reason": "content_filter"})).encode(),
            "ResponseIncomplete",
            "content_filter",
        ),
    ],
)
def test_failed_body_is_a_failure_with_its_cause(body: bytes, kind: str, message: str) -> None:
    failure = ENDPOINT.read_body(body).failure
    assert failure is not None
    assert failure.type == kind
    assert message in failure.message


def test_body_ended_by_the_length_limit_is_a_success() -> None:
    body = response("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[message("a")])
    reply = ENDPOINT.read_body(json.dumps(body).encode())
    assert reply.failure is None
    assert reply.finish == ["max_output_tokens"]


def test_body_with_only_output_text_is_read() -> None:
    reply = ENDPOINT.read_body(b'{"object":"response","output_text":"Yes","output":[]}')
    assert reply.outputs == ["Yes"]
    assert reply.failure is None
