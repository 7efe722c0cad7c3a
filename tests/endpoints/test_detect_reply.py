"""Replies of an unknown API, whose form is detected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.endpoints.detect_reply import UNMATCHED_FIELD
from penstock.endpoints.raw import Raw
from penstock.endpoints.reply import Reply
from penstock.endpoints.template import Template
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


def endpoint(field: str | None = None, kind: type[Raw] = Raw) -> Raw:
    endpoint_ = kind()
    endpoint_.configure(EndpointSettings(type=endpoint_.name, extra={} if field is None else {"response_field": field}))
    return endpoint_


def body(value: Any, field: str | None = None, kind: type[Raw] = Raw) -> Reply:
    return endpoint(field, kind).read_body(value if isinstance(value, bytes) else json.dumps(value).encode())


def stream(*events: Any, field: str | None = None, kind: type[Raw] = Raw) -> Reply:
    parts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return endpoint(field, kind).read_stream(b"".join(b"data: " + part + b"\n\n" for part in parts), timed=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"choices": [{"message": {"content": "chat"}}]}, "chat"),
        ({"choices": [{"text": "completions"}]}, "completions"),
        (
            {
                "object": "response",
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "r"}]}],
            },
            "r",
        ),
        ({"type": "message", "content": [{"type": "text", "text": "messages"}]}, "messages"),
        ({"generated_text": "tgi"}, "tgi"),
        ([{"generated_text": "pipeline"}], "pipeline"),
        ({"response": "ollama", "done": True}, "ollama"),
        ({"message": {"role": "assistant", "content": "ollama chat"}}, "ollama chat"),
        ({"candidates": [{"content": {"parts": [{"text": "gem"}, {"text": "ini"}]}}]}, "gemini"),
        ({"result": ["a", "b"]}, "ab"),
        ({"output": "plain"}, "plain"),
        ({"data": {"text": "deep"}}, "deep"),
        (b"just text", "just text"),
        (b'{"response":"a"}\n{"response":"b","done":true}\n', "ab"),
    ],
)
def test_text_is_found_in_common_forms(value: Any, text: str) -> None:
    reply = body(value)
    assert (reply.outputs, reply.failure) == ([text], None)


@pytest.mark.parametrize(
    ("value", "vectors"),
    [
        ({"object": "list", "data": [{"embedding": [1, 2]}, {"embedding": [3]}]}, 2),
        ({"embeddings": [[1.0], [2.0]]}, 2),
        ({"embedding": [1.0, 2.0]}, 1),
        ([[0.1, 0.2]], 1),
        ({"rankings": [{"index": 0, "logit": 2.0}]}, 1),
        ({"results": [{"index": 1, "relevance_score": 0.5}]}, 1),
    ],
)
def test_vectors_are_content_without_text(value: Any, vectors: int) -> None:
    reply = body(value)
    assert (reply.vectors, reply.outputs, reply.failure) == (vectors, [], None)


def test_model_finish_reason_usage_and_reasoning_are_read() -> None:
    reply = body(
        {"text": "x", "model": "m", "finish_reason": "stop", "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
    )
    assert (reply.model, reply.finish) == ("m", ["stop"])
    assert reply.usage is not None
    assert (reply.usage.prompt, reply.usage.completion) == (2, 1)
    reply = body({"type": "message", "content": [{"type": "thinking", "thinking": "hm"}], "stop_reason": "end_turn"})
    assert (reply.reasonings, reply.finish) == (["hm"], ["end_turn"])


@pytest.mark.parametrize(("value", "kind"), [(b"", "EmptyReply"), ({"error": {"message": "no"}}, "ErrorObject")])
def test_empty_reply_and_error_object_are_failures(value: Any, kind: str) -> None:
    reply = body(value)
    assert reply.failure is not None
    assert reply.failure.type == kind


def test_reply_without_known_keys_has_no_content() -> None:
    reply = body({"x": 1})
    assert (reply.outputs, reply.vectors) == ([], 0)


@pytest.mark.parametrize(
    ("events", "texts"),
    [
        (
            [
                {"choices": [{"delta": {"role": "assistant"}}]},
                {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]},
            ],
            ["a"],
        ),
        ([{"choices": [{"text": "a"}]}, {"choices": [{"text": "b", "finish_reason": "stop"}]}, b"[DONE]"], ["a", "b"]),
        (
            [
                {"type": "response.output_text.delta", "delta": "q"},
                {"type": "response.completed", "response": {"status": "completed"}},
            ],
            ["q"],
        ),
        ([{"token": {"text": "a"}}, {"token": {"text": "</s>", "special": True}, "generated_text": "a"}], ["a"]),
        ([{"text": "a"}, {"text": "b"}, b"[DONE]"], ["a", "b"]),
        ([b"hello", b"world"], ["hello", "world"]),
        ([{"delta": {"content": "a"}}, {"delta": "b"}], ["a", "b"]),
    ],
)
def test_streams_of_common_forms_are_read(events: list[Any], texts: list[str]) -> None:
    reply = stream(*events)
    assert (reply.texts, reply.outputs, reply.failure) == (texts, ["".join(texts)], None)
    assert len(reply.ends) == len(texts)
    assert reply.done


def test_messages_stream_is_read() -> None:
    reply = stream(
        {"type": "message_start", "message": {"id": "i", "model": "m", "usage": {"input_tokens": 3}}},
        {"type": "ping"},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "yes"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    assert (reply.texts, reply.reasoning) == (["hm", "yes", "f", "{}"], [True, False, False, False])
    assert (reply.outputs, reply.reasonings, reply.finish, reply.done) == (["yesf{}"], ["hm"], ["end_turn"], True)
    assert reply.usage is not None
    assert (reply.usage.prompt, reply.usage.completion) == (3, 7)
    cut = stream({"type": "message_start", "message": {}}, {"type": "content_block_delta", "delta": {"text": "y"}})
    assert not cut.done
    failed = stream(
        {"type": "message_start", "message": {}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
    )
    assert failed.failure is not None
    assert "busy" in failed.failure.message


def test_response_field_is_tried_before_detection() -> None:
    assert body({"a": {"b": ["x", "y"]}, "text": "no"}, "a.b").outputs == ["xy"]
    looked = body({"text": "looks"}, "a.b")
    assert (looked.outputs, looked.warnings) == (["looks"], {UNMATCHED_FIELD: 1})
    assert body({"text": "looks", "a": {"b": ""}}, "a.b").warnings == {}
    assert body({"a": [0.5, 0.25]}, "a").vectors == 1
    assert body({"a": {"b": 7}}, "a").outputs == ['{"b": 7}']
    value = stream({"a": "x"}, {"b": 1}, {"a": "y"}, field="a")
    assert (value.texts, len(value.ends)) == (["x", "y"], 2)
    looked = stream({"text": "x"}, field="a")
    assert (looked.texts, looked.warnings) == (["x"], {UNMATCHED_FIELD: 1})


def test_response_field_of_a_template_must_match() -> None:
    assert body({"a": "x"}, "a", Template).outputs == ["x"]
    for reply in (body({"text": "x"}, "a", Template), stream({"text": "x"}, field="a", kind=Template)):
        assert reply.failure is not None
        assert (reply.failure.type, reply.failure.owner) == ("NoMatch", "user")
    assert body({"text": "x"}, None, Template).outputs == ["x"]


def test_input_text_of_common_bodies() -> None:
    raw = Raw()
    assert raw.input_text(
        {"messages": [{"content": "a"}, {"content": [{"type": "text", "text": "b"}]}], "model": "m"}
    ) == ["a", "b"]
    assert raw.input_text({"prompt": ["a", "b"], "temperature": 1}) == ["a", "b"]
    assert raw.input_text({"inputs": "a", "parameters": {"x": "no"}}) == ["a"]
    assert raw.input_text({"contents": [{"parts": [{"text": "a"}]}]}) == ["a"]


def test_invalid_response_field_is_refused() -> None:
    with pytest.raises(UserError, match=r"The response_field 'a\[' in --extra-inputs is not a JMESPath expression"):
        endpoint("a[")
