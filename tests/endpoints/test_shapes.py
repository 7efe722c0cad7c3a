"""Replies whose dialect nobody named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.endpoints.raw import Raw
from penstock.endpoints.reply import Reply
from penstock.endpoints.template import Template
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


def endpoint(field: str | None = None, kind: type[Raw] = Raw) -> Raw:
    made = kind()
    made.configure(EndpointSettings(type=made.name, extra={} if field is None else {"response_field": field}))
    return made


def body(found: Any, field: str | None = None, kind: type[Raw] = Raw) -> Reply:
    return endpoint(field, kind).read_body(found if isinstance(found, bytes) else json.dumps(found).encode())


def stream(*events: Any, field: str | None = None, kind: type[Raw] = Raw) -> Reply:
    parts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return endpoint(field, kind).read_stream(b"".join(b"data: " + part + b"\n\n" for part in parts), timed=True)


@pytest.mark.parametrize(
    ("found", "text"),
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
def test_text_is_found(found: Any, text: str) -> None:
    reply = body(found)
    assert (reply.outputs, reply.failure) == ([text], None)


@pytest.mark.parametrize(
    ("found", "vectors"),
    [
        ({"object": "list", "data": [{"embedding": [1, 2]}, {"embedding": [3]}]}, 2),
        ({"embeddings": [[1.0], [2.0]]}, 2),
        ({"embedding": [1.0, 2.0]}, 1),
        ([[0.1, 0.2]], 1),
        ({"rankings": [{"index": 0, "logit": 2.0}]}, 1),
        ({"results": [{"index": 1, "relevance_score": 0.5}]}, 1),
    ],
)
def test_vectors_are_content_without_text(found: Any, vectors: int) -> None:
    reply = body(found)
    assert (reply.vectors, reply.outputs, reply.failure) == (vectors, [], None)


def test_what_else_a_reply_says() -> None:
    reply = body(
        {"text": "x", "model": "m", "finish_reason": "stop", "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
    )
    assert (reply.model, reply.finish) == ("m", ["stop"])
    assert reply.usage is not None
    assert (reply.usage.prompt, reply.usage.completion) == (2, 1)
    reply = body({"type": "message", "content": [{"type": "thinking", "thinking": "hm"}], "stop_reason": "end_turn"})
    assert (reply.reasonings, reply.finish) == (["hm"], ["end_turn"])


@pytest.mark.parametrize(("found", "kind"), [(b"", "EmptyReply"), ({"error": {"message": "no"}}, "ErrorObject")])
def test_failures(found: Any, kind: str) -> None:
    reply = body(found)
    assert reply.failure is not None
    assert reply.failure.type == kind


def test_nothing_known_is_nothing() -> None:
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
def test_streams(events: list[Any], texts: list[str]) -> None:
    reply = stream(*events)
    assert (reply.texts, reply.outputs, reply.failure) == (texts, ["".join(texts)], None)
    assert len(reply.ends) == len(texts)
    assert reply.done


def test_a_stream_of_messages() -> None:
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


def test_an_expression_is_asked_first_and_may_miss() -> None:
    assert body({"a": {"b": ["x", "y"]}, "text": "no"}, "a.b").outputs == ["xy"]
    assert body({"text": "looks"}, "a.b").outputs == ["looks"]
    assert body({"a": [0.5, 0.25]}, "a").vectors == 1
    assert body({"a": {"b": 7}}, "a").outputs == ['{"b": 7}']
    found = stream({"a": "x"}, {"b": 1}, {"a": "y"}, field="a")
    assert (found.texts, len(found.ends)) == (["x", "y"], 2)
    assert stream({"text": "x"}, field="a").texts == ["x"]


def test_for_a_template_the_expression_must_match() -> None:
    assert body({"a": "x"}, "a", Template).outputs == ["x"]
    for reply in (body({"text": "x"}, "a", Template), stream({"text": "x"}, field="a", kind=Template)):
        assert reply.failure is not None
        assert reply.failure.type == "NoMatch"
    assert body({"text": "x"}, None, Template).outputs == ["x"]


def test_the_input_of_any_body() -> None:
    raw = Raw()
    assert raw.input_text(
        {"messages": [{"content": "a"}, {"content": [{"type": "text", "text": "b"}]}], "model": "m"}
    ) == ["a", "b"]
    assert raw.input_text({"prompt": ["a", "b"], "temperature": 1}) == ["a", "b"]
    assert raw.input_text({"inputs": "a", "parameters": {"x": "no"}}) == ["a"]
    assert raw.input_text({"contents": [{"parts": [{"text": "a"}]}]}) == ["a"]


def test_a_bad_expression() -> None:
    with pytest.raises(UserError, match=r"The response_field 'a\[' in --extra-inputs is not a JMESPath expression"):
        endpoint("a[")
