"""Replies of the endpoints besides the OpenAI text APIs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import History
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.endpoints.reply import Reply, Usage
from penstock.settings.schema import EndpointSettings


def read(name: str, value: Any) -> Reply:
    return endpoint(name).read_body(value if isinstance(value, bytes) else json.dumps(value).encode())


def stream(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


@pytest.mark.parametrize(
    ("name", "value", "results"),
    [
        ("embeddings", {"data": [{"object": "embedding", "embedding": [0.1]}, {"embedding": "AAA="}]}, 2),
        ("chat_embeddings", {"data": [{"object": "embedding", "embedding": [0.1]}]}, 1),
        ("nim_embeddings", {"data": [{"embedding": [0.1]}, {"embedding": [0.2]}]}, 2),
        ("image_edit", {"data": [{"b64_json": "AAAA"}, {"url": "http://h/1.png"}]}, 2),
        (
            "image_retrieval",
            {"data": [{"index": 0, "bounding_boxes": {"title": []}}], "usage": {"images_size_mb": 1}},
            1,
        ),
        ("nim_rankings", {"rankings": [{"index": 1, "logit": 2.5}, {"index": 0, "logit": -1}]}, 2),
        ("cohere_rankings", {"results": [{"index": 0, "relevance_score": 0.9}]}, 1),
        ("hf_tei_rankings", [{"index": 0, "score": 0.9}, {"index": 1, "score": 0.1}], 2),
        ("hf_tei_rankings", {"results": [{"index": 0, "relevance_score": 0.9}]}, 1),
        ("image_generation", {"data": [{"b64_json": "AAAA"}, {"url": "http://h/1.png"}, {"b64_json": None}]}, 2),
        ("audio_transcription", {"text": ""}, 1),
    ],
)
def test_results_without_text_are_counted(name: str, value: Any, results: int) -> None:
    reply = read(name, value)
    assert (reply.vectors, reply.failure, reply.done) == (results, None, True)


@pytest.mark.parametrize(
    ("name", "value", "usage"),
    [
        ("embeddings", {"data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}}, Usage(prompt=4, total=4)),
        ("embeddings", {"data": [], "usage": {"prompt_tokens": 4.0, "total_tokens": 4.5}}, Usage(prompt=4)),
        (
            "chat",
            {"choices": [], "usage": {"prompt_tokens": 4.0, "prompt_tokens_details": {"cached_tokens": 2.0}}},
            Usage(prompt=4, cache_read=2),
        ),
        ("nim_rankings", {"rankings": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}}, Usage(prompt=4, total=4)),
        (
            "image_generation",
            {"data": [], "usage": {"input_tokens": 4, "output_tokens": 9}},
            Usage(prompt=4, completion=9),
        ),
        (
            "huggingface_generate",
            {"generated_text": "x", "details": {"finish_reason": "length", "generated_tokens": 3, "input_length": 4}},
            Usage(prompt=4, completion=3, total=7),
        ),
        (
            "messages",
            {"content": [], "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 10}},
            Usage(prompt=13, completion=2, cache_read=10),
        ),
    ],
)
def test_token_counts_of_the_server_are_read(name: str, value: Any, usage: Usage) -> None:
    assert read(name, value).usage == usage


@pytest.mark.parametrize(
    "name",
    [
        "embeddings",
        "nim_rankings",
        "cohere_rankings",
        "hf_tei_rankings",
        "messages",
        "huggingface_generate",
        "image_generation",
        "image_edit",
        "image_retrieval",
        "chat_embeddings",
        "audio_transcription",
    ],
)
@pytest.mark.parametrize(
    ("body", "type_"),
    [
        (b"", "EmptyReply"),
        (b"<html>", "MalformedJSON"),
        (b'{"error": {"message": "too long", "type": "bad"}}', "ErrorObject"),
        (b'{"error": "too long"}', "ErrorObject"),
        (b'{"other": 1}', "InvalidReply"),
        (b"[1]", "InvalidReply"),
    ],
)
def test_reply_of_another_form_is_a_failure_of_the_server(name: str, body: bytes, type_: str) -> None:
    failure = endpoint(name).read_body(body).failure
    assert failure is not None
    assert (failure.type, failure.owner) == (type_, "server")


@pytest.mark.parametrize("value", [{"generated_text": "one two"}, [{"generated_text": "one two"}]])
def test_generated_text_is_the_output(value: Any) -> None:
    assert read("huggingface_generate", value).outputs == ["one two"]


def test_generated_stream_has_a_piece_for_each_token_that_is_text() -> None:
    body = stream(
        {"index": 1, "token": {"id": 5, "text": "one", "special": False}, "generated_text": None},
        {"index": 2, "token": {"id": 6, "text": " two", "special": False}, "generated_text": None},
        {
            "index": 3,
            "token": {"id": 2, "text": "</s>", "special": True},
            "generated_text": "one two",
            "details": {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 4},
        },
    )
    reply = endpoint("huggingface_generate").read_stream(body, timed=True)
    assert (reply.texts, reply.outputs, reply.finish) == (["one", " two"], ["one two"], ["eos_token"])
    assert reply.ends[1] == body.index(b"data", reply.ends[0] + 1)
    assert (reply.done, reply.usage) == (True, Usage(prompt=4, completion=3, total=7))


@pytest.mark.parametrize("name", ["huggingface_generate", "image_generation", "messages"])
def test_errors_in_a_stream_are_failures(name: str) -> None:
    error = stream({"type": "error", "error": "overloaded"})
    for body, type_ in ((error, "ErrorObject"), (b"data: {oops\n\n", "MalformedEvent")):
        failure = endpoint(name).read_stream(body, timed=True).failure
        assert failure is not None
        assert failure.type == type_


def test_drafts_of_an_image_are_no_images() -> None:
    body = stream(
        {"type": "image_generation.partial_image", "b64_json": "AA=="},
        {"type": "image_generation.completed", "b64_json": "AAAA", "usage": {"input_tokens": 4}},
    )
    reply = endpoint("image_generation").read_stream(body, timed=True)
    assert (len(reply.texts), reply.images, reply.done, reply.usage) == (2, 1, True, Usage(prompt=4))


def test_transcript_may_be_plain_text() -> None:
    assert read("audio_transcription", b"Good morning.\n").outputs == ["Good morning.\n"]
    assert read("audio_transcription", b"1984").outputs == ["1984"]
    assert read("audio_transcription", {"text": "Good morning."}).outputs == ["Good morning."]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "messages",
            r'{"content": [{"type": "text", "text": "a\ud83d"}, {"type": "tool_use", "input": {"x": "\ud83d"}}]}',
        ),
        ("raw", r'{"text": "a\ud83d"}'),
        ("raw", r'{"error": "a\ud83d"}'),
        ("audio_transcription", r'{"text": "a\ud83d"}'),
        ("huggingface_generate", r'{"generated_text": "a\ud83d"}'),
        ("image_generation", r'{"data": [{"b64_json": "AAAA", "revised_prompt": "a\ud83d"}]}'),
    ],
)
def test_lone_surrogate_in_a_reply_can_be_logged(name: str, text: str) -> None:
    """JSON may contain half of a surrogate pair, which UTF-8 cannot encode."""
    reply = endpoint(name).read_body(text.encode())
    assert any(reply.outputs) or reply.images or "a\ufffd" in str(reply.failure)
    msgspec.msgpack.encode((reply.outputs, reply.failure, reply.items))


@pytest.mark.parametrize(
    ("name", "event"),
    [
        (
            "messages",
            r'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a\ud83d"}}',
        ),
        ("raw", r'{"text": "a\ud83d"}'),
        ("huggingface_generate", r'{"token": {"text": "a\ud83d"}}'),
    ],
)
def test_lone_surrogate_in_a_stream_is_replaced(name: str, event: str) -> None:
    reply = endpoint(name).read_stream(f"data: {event}\n\n".encode(), timed=True)
    assert (reply.outputs, reply.failure) == (["a\ufffd"], None)


def test_huge_integer_in_a_tool_call_can_be_sent_back() -> None:
    messages, history = endpoint("messages"), History()
    reply = read("messages", {"content": [{"type": "tool_use", "name": "f", "input": {"n": 10**30}}]})
    assert (reply.outputs, reply.failure) == ([f'f{{"n":{10**30}}}'], None)
    messages.remember(history, Turn(texts=("a",)), reply, EndpointSettings())
    sent = json.loads(messages.encode(messages.build(Turn(texts=("b",)), "m", EndpointSettings(), history)))
    assert sent["messages"][1]["content"][0]["input"] == {"n": 1e30}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", {"type": "content_block_delta", "index": [], "delta": {"text": "a"}}),
        ("raw", {"token": {"text": 1}}),
        ("huggingface_generate", {"token": {"text": "a"}, "details": {"generated_tokens": 10**30}}),
    ],
)
def test_event_with_an_absurd_value_is_read(name: str, value: Any) -> None:
    reply = endpoint(name).read_stream(stream(value), timed=True)
    msgspec.msgpack.encode((reply.outputs, reply.usage, reply.failure))


def test_null_in_a_later_usage_of_a_message_stream_changes_no_count() -> None:
    body = stream(
        {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 4}}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 9},
        },
    )
    usage = endpoint("messages").read_stream(body, timed=True).usage
    assert usage == Usage(prompt=7, completion=9, cache_read=4)


def test_message_stream_gives_thinking_text_and_tool_calls_to_the_next_turn() -> None:
    messages = endpoint("messages")
    body = stream(
        {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me see."}},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"at"'}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )
    reply = messages.read_stream(body, timed=True)
    assert (reply.reasonings, reply.outputs) == (["Hm."], ['Let me see.look{"at":1}'])
    assert (reply.usage, reply.finish, reply.done) == (Usage(prompt=3, completion=9), ["tool_use"], True)
    history = History()
    messages.remember(history, Turn(texts=("Where?",)), reply, EndpointSettings())
    assert history.items[1] == {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
        ],
    }
