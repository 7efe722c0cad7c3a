"""Replies of the mock, read by the official OpenAI client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest


@pytest.fixture(scope="module")
def client(mock: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=mock.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


MESSAGES: Any = [{"role": "user", "content": "How many roads must a man walk down?"}]


def test_client_reads_a_chat_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12)
    assert len((reply.choices[0].message.content or "").split()) == 12
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.model == "m"


@pytest.mark.parametrize("options", ["", "itl=1", "crlf", "comments=1", "event_lines", "split=0.5", "framing=eof"])
def test_client_reads_a_chat_stream(client: openai.OpenAI, options: str) -> None:
    stream = client.chat.completions.create(
        model="m",
        messages=MESSAGES,
        max_completion_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Mock": options},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(text.split()) == 12
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert len({c.id for c in chunks}) == 1


def test_client_reads_tool_calls(client: openai.OpenAI) -> None:
    headers = {"X-Mock": "tools;tokens=5;reasoning=1"}
    reply = client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)
    calls: Any = reply.choices[0].message.tool_calls
    assert calls[0].function.name == "look_up"
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 1
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_headers=headers)
    deltas = [chunk.choices[0].delta for chunk in stream]
    call_deltas: list[Any] = [call for delta in deltas for call in delta.tool_calls or []]
    assert call_deltas[0].function.name == "look_up"
    assert len(call_deltas) == 4


def test_client_reads_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="m", prompt=["Once", "Twice"], max_tokens=4, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert all(len(choice.text.split()) == 4 for choice in reply.choices)
    stream = client.completions.create(model="m", prompt="Once", max_tokens=4, stream=True)
    assert len("".join(chunk.choices[0].text for chunk in stream).split()) == 4


def test_client_reads_embeddings_in_both_encodings(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="m", input="x", dimensions=6)  # this client asks for base64
    plain = client.embeddings.create(model="m", input="x", dimensions=6, encoding_format="float")
    assert len(packed.data[0].embedding) == len(plain.data[0].embedding) == 6
    assert all(isinstance(value, float) for value in packed.data[0].embedding)
    assert packed.usage.prompt_tokens == 1


def test_both_encodings_hold_the_same_numbers() -> None:
    import base64
    import json
    import struct

    from penstock.mock_server.embeddings import vector

    unpacked = struct.unpack("<6f", base64.b64decode(json.loads(vector(1, 2, 6, True))))
    assert list(unpacked) == json.loads(vector(1, 2, 6, False))


def test_client_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mock-model"]


def test_client_raises_the_error_class_of_each_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="429"):
        client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={"X-Mock": "error=429"})
    with pytest.raises(openai.BadRequestError, match="messages is required"):
        client.chat.completions.create(model="m", messages=[])
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")
    headers = {"X-Mock": "stream_error=2"}
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_headers=headers)
    with pytest.raises(openai.APIError, match="told to fail"):
        list(stream)
