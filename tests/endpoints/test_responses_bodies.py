"""Request bodies of the Responses API, and the history that later turns contain."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseInputParam
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from penstock.datasets.conversation import Media, Turn
from penstock.endpoints.base import History
from penstock.endpoints.chat import Chat
from penstock.endpoints.responses import Responses
from penstock.settings.schema import EndpointSettings
from support.responses_api import USAGE, message, response

ENDPOINT = Responses()
PLAIN = EndpointSettings(type="responses")
INPUT = TypeAdapter(ResponseInputParam)


def built(turn: Turn, settings: EndpointSettings = PLAIN, history: History | None = None) -> dict[str, Any]:
    """Return the body as it is sent."""
    body: dict[str, Any] = json.loads(orjson.dumps(ENDPOINT.build(turn, "m", settings, history or History())))
    return body


def remember_reply(history: History, turn: Turn, *items: dict[str, Any], settings: EndpointSettings = PLAIN) -> None:
    body = json.dumps(response(output=list(items), usage=USAGE, output_text="Yes")).encode()
    ENDPOINT.remember(history, turn, ENDPOINT.read_body(body), settings)


def test_body_of_one_text_has_one_message() -> None:
    body = built(Turn(texts=("Hello",), output_tokens=10))
    assert body == {
        "input": [{"role": "user", "content": "Hello", "type": "message"}],
        "model": "m",
        "stream": False,
        "max_output_tokens": 10,
    }
    assert list(body) == ["input", "model", "stream", "max_output_tokens"]


def test_images_and_audio_are_parts_of_the_message() -> None:
    turn = Turn(texts=("What is it?",), images=(Media("https://h/a.png"),), audios=(Media("UklG", "wav"),))
    (item,) = built(turn)["input"]
    assert item["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "https://h/a.png"},
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
    ]


def test_several_texts_are_parts() -> None:
    (item,) = built(Turn(texts=("a", "b")))["input"]
    assert item["content"] == [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]


def test_images_and_audio_are_parts_of_a_chat_message() -> None:
    turn = Turn(
        texts=("What?",),
        images=(Media("data:image/png;base64,x"),),
        audios=(Media("y", "mp3"), Media("http://h/a.mp3")),
    )
    (message,) = Chat().build(turn, "m", EndpointSettings())["messages"]
    assert message["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}},
        {"type": "input_audio", "input_audio": {"data": "y", "format": "mp3"}},
        {"type": "audio_url", "audio_url": {"url": "http://h/a.mp3"}},
    ]


def test_system_prompt_is_instructions_and_context_is_a_message() -> None:
    body = built(Turn(texts=("Hi",)), history=History(system="Be brief.", context="I am Ada."))
    assert body["instructions"] == "Be brief."
    assert body["input"] == [
        {"type": "message", "role": "user", "content": "I am Ada."},
        {"role": "user", "content": "Hi", "type": "message"},
    ]
    assert "system" not in json.dumps(body)
    assert ENDPOINT.input_text(body) == ["Be brief.", "I am Ada.", "Hi"]


def test_system_turn_has_the_role_developer() -> None:
    assert built(Turn(texts=("Now in French.",), role="system"))["input"][0]["role"] == "developer"


@pytest.mark.parametrize(
    ("streaming", "server_counts", "sent"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_usage_is_requested_for_streams_with_server_token_counts(
    streaming: bool, server_counts: bool, sent: bool
) -> None:
    body = built(Turn(texts=("Hi",)), EndpointSettings(streaming=streaming, server_token_count=server_counts))
    assert (body.get("stream_options") == {"include_usage": True}) is sent
    assert body["stream"] is streaming


def test_stream_options_of_null_are_not_sent() -> None:
    settings = EndpointSettings(streaming=True, extra={"stream_options": None})
    assert "stream_options" not in built(Turn(texts=("Hi",)), settings)


def test_extra_fields_keep_their_types_and_come_last() -> None:
    settings = EndpointSettings(extra={"temperature": 0.7, "store": False, "metadata": {"a": 1}, "user": None})
    body = built(Turn(texts=("Hi",), output_tokens=5, extra={"temperature": 0, "stop": ["x"]}), settings)
    assert body["temperature"] == 0
    assert body["store"] is False
    assert body["metadata"] == {"a": 1}
    assert body["user"] is None
    assert list(body) == [
        "input",
        "model",
        "stream",
        "max_output_tokens",
        "temperature",
        "store",
        "metadata",
        "user",
        "stop",
    ]


def test_second_turn_contains_the_output_items_unchanged() -> None:
    history = History(system="Be brief.")
    first = Turn(texts=("One",))
    answer = message("Two", vendor={"x": 1.50}, id="msg_9")
    remember_reply(history, first, answer)
    body = built(Turn(texts=("Three",)), history=history)
    assert body["input"] == [
        {"role": "user", "content": "One", "type": "message"},
        answer,
        {"role": "user", "content": "Three", "type": "message"},
    ]
    assert body["instructions"] == "Be brief."
    assert "previous_response_id" not in body
    assert ENDPOINT.input_text(body) == ["Be brief.", "One", "Two", "Three"]
    INPUT.validate_python(body["input"])


def test_reasoning_and_server_tool_calls_are_not_sent_back() -> None:
    history = History()
    call = {"id": "fc_1", "type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"}
    remember_reply(
        history,
        Turn(texts=("One",)),
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "ws_1", "type": "web_search_call", "status": "completed"},
        call,
        message("Two"),
    )
    kinds = [item["type"] for item in built(Turn(texts=("Three",)), history=history)["input"]]
    assert kinds == ["message", "function_call", "message", "message"]


def test_reply_without_items_is_sent_back_as_text() -> None:
    history = History()
    remember_reply(history, Turn(texts=("One",)))
    body = built(Turn(texts=("Two",)), history=history)
    assert body["input"][1] == {"role": "assistant", "content": "Yes", "type": "message"}
    INPUT.validate_python(body["input"])


def test_stored_history_is_referenced_and_not_sent() -> None:
    settings = EndpointSettings(streaming=True, server_token_count=True, extra={"store": True})
    history = History(system="Be brief.", context="I am Ada.")
    remember_reply(history, Turn(texts=("One",)), message("Two"), settings=settings)
    body = built(Turn(texts=("Three",), output_tokens=4), settings, history)
    assert body == {
        "input": [{"role": "user", "content": "Three", "type": "message"}],
        "model": "m",
        "stream": True,
        "previous_response_id": "resp_1",
        "instructions": "Be brief.",
        "max_output_tokens": 4,
        "store": True,
        "stream_options": {"include_usage": True},
    }
    assert list(body)[3:6] == ["previous_response_id", "instructions", "max_output_tokens"]


def test_stored_reply_without_an_id_falls_back_to_the_full_history() -> None:
    settings = EndpointSettings(extra={"store": True})
    history = History()
    body = json.dumps({"object": "response", "output": [message("Two")]}).encode()
    ENDPOINT.remember(history, Turn(texts=("One",)), ENDPOINT.read_body(body), settings)
    assert len(built(Turn(texts=("Three",)), settings, history)["input"]) == 3


def test_body_is_valid_for_the_openai_package() -> None:
    history = History(system="Be brief.", context="I am Ada.")
    remember_reply(history, Turn(texts=("One",)), message("Two"))
    body = built(Turn(texts=("a", "b"), output_tokens=9), EndpointSettings(streaming=True), history)
    TypeAdapter(ResponseCreateParamsStreaming).validate_python(body)


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"input": "plain"}, ["plain"]),
        ({"input": "plain", "instructions": "first"}, ["first", "plain"]),
        ({"input": [{"type": "function_call_output", "output": "42"}]}, ["42"]),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, ["f", "{}"]),
        ({"input": [{"content": [{"type": "refusal", "refusal": "No"}]}, 5, {"content": [7]}]}, ["No"]),
        ({}, []),
    ],
)
def test_input_text_returns_the_texts_of_any_body(body: dict[str, Any], texts: list[str]) -> None:
    assert ENDPOINT.input_text(body) == texts
