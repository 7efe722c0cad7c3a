"""Unstreamed replies of chat completions and completions."""

from __future__ import annotations

import json

import pytest

from penstock.endpoints.base import endpoint_named as endpoint
from penstock.endpoints.reply import Reply, Usage

CHAT = endpoint("chat")
COMPLETIONS = endpoint("completions")
COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def message(*messages: dict, finish: str | None = "stop", **fields) -> bytes:
    choices = [{"index": n, "message": fields, "finish_reason": finish} for n, fields in enumerate(messages)]
    return json.dumps(
        {"object": "chat.completion", "model": "m", "choices": choices, "usage": COUNTS, **fields}
    ).encode()


def read(body: bytes, endpoint=CHAT) -> Reply:
    return endpoint.read_body(body)


def test_chat_reply_is_read():
    reply = read(message({"role": "assistant", "content": "Hello"}))
    assert (reply.outputs, reply.finish, reply.model) == (["Hello"], ["stop"], "m")
    assert reply.usage == Usage(3, 2, 5)
    assert reply.failure is None


def test_completions_reply_is_read():
    choices = [{"index": 0, "text": "Hello", "finish_reason": "length"}]
    reply = read(json.dumps({"object": "text_completion", "choices": choices}).encode(), COMPLETIONS)
    assert (reply.outputs, reply.finish, reply.usage, reply.failure) == (["Hello"], ["length"], None, None)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_both_names(key):
    reply = read(message({"content": "Four", key: "Two and two"}))
    assert (reply.outputs, reply.reasonings) == (["Four"], ["Two and two"])


def test_function_call_of_the_old_form_is_content():
    assert read(message({"content": None, "function_call": {"name": "f", "arguments": "{}"}})).outputs == ["f{}"]


def test_tool_calls_and_refusals_are_content():
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]
    assert read(message({"content": None, "tool_calls": calls})).outputs == ['f{"x":1}']
    assert read(message({"content": None, "refusal": "No."})).outputs == ["No."]
    beside = read(message({"content": "See: ", "tool_calls": calls}))
    assert (beside.outputs, beside.content) == (['See: f{"x":1}'], "See: ")


def test_every_choice_is_read():
    reply = read(message({"content": "a"}, {"content": "b"}, {"content": "c"}))
    assert (reply.outputs, reply.finish) == (["a", "b", "c"], ["stop"] * 3)


def test_missing_finish_reason_is_no_failure():
    reply = read(message({"content": "a"}, finish=None))
    assert (reply.outputs, reply.finish, reply.failure) == (["a"], [], None)


def test_content_parts_are_joined():
    assert read(message({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})).outputs == ["ab"]


@pytest.mark.parametrize(
    ("body", "kind", "part"),
    [
        (b"", "EmptyReply", "no body"),
        (b"  \n", "EmptyReply", "no body"),
        (b"<html><h1>It works!</h1></html>", "MalformedJSON", "It works!"),
        (message({"content": "Hello"})[:-20], "MalformedJSON", "not JSON"),
        (b'{"choices": 5, "us', "MalformedJSON", "not JSON"),
        (b"[1,2]", "InvalidReply", "not an object"),
        (b'"text"', "InvalidReply", "not an object"),
        (b"{}", "InvalidReply", "no choices"),
        (b'{"choices": []}', "InvalidReply", "no choices"),
        (b'{"choices": 5}', "InvalidReply", "no choices"),
        (b'{"error": {"message": "no such model", "code": 404}}', "ErrorObject", "no such model"),
        (b'{"error": "no such model"}', "ErrorObject", "no such model"),
        (b'{"object": "error", "message": "no such model", "code": 404}', "ErrorObject", "no such model"),
    ],
)
def test_invalid_reply_is_a_failure_with_its_cause(body, kind, part):
    failure = read(body).failure
    assert failure is not None
    assert (failure.type, failure.owner) == (kind, "server")
    assert part in failure.message
