"""/v1/responses: streams and bodies, read by the official OpenAI client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from penstock.datasets.media.audio import record_mp3, record_wav
from penstock.datasets.media.images import draw_jpeg, draw_png
from penstock.endpoints.responses import Responses
from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.compiled_behaviour import CompiledBehaviour
from penstock.mock_server.dialect import PlannedReply
from penstock.mock_server.reply import Reply
from penstock.mock_server.responses import STORED_REPLIES
from penstock.mock_server.responses import Responses as Dialect

PATH = "/v1/responses"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def client(mock: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=mock.url + "/v1", api_key="x", max_retries=0, timeout=60) as client:
        yield client


def request_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "How many roads?", **fields}


def streamed(client: openai.OpenAI, mock: str = "", **fields: Any) -> list[Any]:
    """Return the events as the client parsed them, each validated against its type."""
    headers = {"X-Mock": mock} if mock else {}
    parsed = []
    with client.responses.create(**request_body(**fields), stream=True, extra_headers=headers) as events:
        for event in events:
            EVENTS.validate_python(event.model_dump(exclude_unset=True))
            parsed.append(event)
    assert [event.sequence_number for event in parsed] == list(range(len(parsed)))
    return parsed


def whole(client: openai.OpenAI, mock: str = "", **fields: Any) -> Response:
    reply = client.responses.create(**request_body(**fields), extra_headers={"X-Mock": mock} if mock else {})
    Response.model_validate(reply.model_dump(exclude_unset=True))
    return reply


def test_plain_stream_has_the_expected_events(client: openai.OpenAI) -> None:
    names = [event.type for event in streamed(client, max_output_tokens=3)]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("pace", ["", "ttft=1;itl=1", "separate"])
@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize(
    ("option", "kinds"),
    [
        ("chunk=1", {"output_text"}),
        ("chunk=4", {"output_text"}),
        ("reasoning=2", {"reasoning_summary_text", "output_text"}),
        ("reasoning=2;thoughts=text;chunk=2", {"reasoning_text", "output_text"}),
        ("tools", {"function_call_arguments"}),
        ("tools;chunk=4;reasoning=3", {"reasoning_summary_text", "function_call_arguments"}),
        ("refusal", {"refusal"}),
    ],
)
def test_every_kind_of_reply_is_consistent_and_counted(
    client: openai.OpenAI, option: str, kinds: set[str], tokens: int, pace: str
) -> None:
    events = streamed(client, f"{option};{pace}", max_output_tokens=tokens)
    texts_by_kind: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            kind = event.type.split(".")[1]
            texts_by_kind[kind] = texts_by_kind.get(kind, "") + event.delta
    assert texts_by_kind.keys() <= kinds
    assert len(texts_by_kind) == min(len(kinds), 1 + (tokens > (3 if "reasoning=3" in option else 2)))
    for event in events:
        kind = event.type.split(".")[1]
        if event.type.endswith(".done") and kind in texts_by_kind:
            texts = [getattr(event, field, None) for field in ("text", "refusal", "arguments")]
            assert texts_by_kind[kind] in texts
    final = events[-1].response
    assert (events[-1].type, final.status) == ("response.completed", "completed")
    assert final.usage.output_tokens == tokens
    assert final.usage.output_tokens_details.reasoning_tokens == min(tokens, 3 if "reasoning=3" in option else 2) * (
        "reasoning" in option
    )
    unstreamed = whole(client, option, max_output_tokens=tokens)
    assert [item.type for item in unstreamed.output] == [item.type for item in final.output]
    assert unstreamed.usage == final.usage


def test_penstock_and_the_openai_client_read_the_same(mock: Any, client: openai.OpenAI) -> None:
    for option in ("reasoning=3", "tools", "refusal", "thoughts=text;reasoning=2"):
        answer = mock.exchange(request_body(stream=True, max_output_tokens=7), path=PATH, mock=option)
        reply = Responses().read_stream(answer.body, timed=True)
        assert reply.failure is None
        assert reply.warnings == {}
        assert len(reply.texts) == 7
        assert reply.usage is not None
        assert reply.usage.completion == 7
        plain = Responses().read_body(mock.exchange(request_body(max_output_tokens=7), path=PATH, mock=option).body)
        assert [len(text.split()) for text in plain.outputs] == [len(text.split()) for text in reply.outputs]
        assert len(plain.reasonings) == len(reply.reasonings)


def test_function_call_arguments_are_json(client: openai.OpenAI) -> None:
    for tokens in (1, 2, 3, 12):
        (call,) = whole(client, "tools", max_output_tokens=tokens).output
        assert call.type == "function_call"
        assert isinstance(json.loads(call.arguments), dict)


def test_request_fields_are_echoed(client: openai.OpenAI) -> None:
    events = streamed(client, instructions="Be brief.", max_output_tokens=4, model="some-model")
    for reply in (
        events[0].response,
        events[-1].response,
        whole(client, instructions="Be brief.", max_output_tokens=4),
    ):
        assert reply.instructions == "Be brief."
        assert reply.max_output_tokens == 4
    assert events[0].response.id == events[-1].response.id
    assert events[0].response.model == "some-model"
    assert events[-1].response.output[0].id == events[2].item.id


def test_ids_are_unique(client: openai.OpenAI) -> None:
    replies = [whole(client, max_output_tokens=2) for _ in range(20)]
    assert len({reply.id for reply in replies}) == 20
    assert len({reply.output[0].id for reply in replies}) == 20


def test_previous_response_counts_as_cached_input(client: openai.OpenAI) -> None:
    first = whole(client, input="x" * 40, max_output_tokens=5)
    assert first.usage is not None
    assert first.usage.input_tokens == 9
    second = streamed(client, input="y" * 40, max_output_tokens=5, previous_response_id=first.id)[-1].response
    assert second.usage.input_tokens == 23
    assert second.usage.input_tokens_details.cached_tokens == 14
    assert second.previous_response_id == first.id
    third = whole(client, input="z" * 40, previous_response_id=second.id, max_output_tokens=5)
    assert third.usage is not None
    assert third.usage.input_tokens == 37


def test_unknown_previous_response_is_rejected(client: openai.OpenAI) -> None:
    unstored = whole(client, store=False)
    for name in (unstored.id, "resp_nothing"):
        with pytest.raises(openai.BadRequestError, match=f"Previous response with id '{name}' not found"):
            whole(client, previous_response_id=name)


def test_number_of_stored_replies_is_limited() -> None:
    dialect = Dialect()
    planned = PlannedReply(dialect.parse(b'{"model":"m","input":"x"}'), Behaviour(), 0, has_output_kinds=True)
    ids = [dialect.reply_id(planned, number, 0) for number in range(STORED_REPLIES + 10)]
    assert len(dialect._stored) == STORED_REPLIES
    assert "resp_" + ids[0].decode() not in dialect._stored
    assert "resp_" + ids[-1].decode() in dialect._stored


def test_incomplete_and_failed_set_the_final_status(client: openai.OpenAI) -> None:
    limited = streamed(client, "incomplete=max_output_tokens", max_output_tokens=3)[-1]
    assert (limited.type, limited.response.status) == ("response.incomplete", "incomplete")
    assert limited.response.incomplete_details.reason == "max_output_tokens"
    assert limited.response.usage.output_tokens == 3
    assert streamed(client, "incomplete=max_output_tokens;tokens=3")[-1].type == "response.completed"
    assert whole(client, "incomplete=content_filter").status == "incomplete"
    events = streamed(client, "failed=2", max_output_tokens=9)
    assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "server_error")
    assert sum(event.type == "response.output_text.delta" for event in events) == 2
    failed = whole(client, "failed=2")
    assert failed.status == "failed"
    assert failed.error is not None


def test_stream_error_sends_an_error_event(client: openai.OpenAI) -> None:
    event = streamed(client, "stream_error=3")[-1]
    assert (event.type, event.code, event.message) == ("error", "server_error", "the mock was told to fail here")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault",
    ["error=429", "cut=2", "cut=2;reset=on", "malformed=2", "slow_head=0.05", "empty", "html", "content_type=text/x"],
)
def test_faults_of_chat_apply_to_responses(mock: Any, fault: str, stream: bool) -> None:
    answer = mock.exchange(request_body(stream=stream, max_output_tokens=6), path=PATH, mock=fault)
    name = fault.partition("=")[0].partition(";")[0]
    if name == "error":
        assert answer.status == 429
        assert answer.json["error"]["type"] == "rate_limit_error"
    elif name == "cut":
        assert answer.end in ("eof", "reset")
    elif name == "empty":
        assert answer.body == b""
    elif name == "html":
        assert b"<html>" in answer.body
    elif name == "content_type":
        assert answer.headers["content-type"] == "text/x"
    elif name == "malformed":
        reader = Responses().read_stream if stream else None
        reply = reader(answer.body, timed=False) if reader else Responses().read_body(answer.body)
        assert reply.failure is not None
        assert reply.failure.type in ("MalformedEvent", "MalformedJSON")
    else:
        assert answer.status == 200


def test_finish_off_omits_the_last_event(mock: Any) -> None:
    answer = mock.exchange(request_body(stream=True, max_output_tokens=3), path=PATH, mock="finish=off")
    assert answer.chunks[-1]["type"] == "response.output_item.done"
    assert "input_tokens" not in answer.body.decode()


def test_usage_can_be_omitted(mock: Any) -> None:
    last = mock.exchange(request_body(stream=True), path=PATH, mock="usage=never").chunks[-1]
    assert last["response"]["usage"] is None


PNG = "data:image/png;base64," + base64.b64encode(draw_png("x", 20, 10)).decode()
JPEG = "data:image/jpeg;base64," + base64.b64encode(draw_jpeg("x", 20, 10)).decode()
WAV = base64.b64encode(record_wav("x", 0.1, 8000, 16, 1)).decode()
MP3 = base64.b64encode(record_mp3("x", 0.1, 16000, 1)).decode()


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return request_body(input=[{"role": "user", "content": list(parts)}])


def test_images_and_audio_are_accepted_and_counted(start: Any) -> None:
    server = start()
    images = [{"type": "input_image", "image_url": url} for url in (PNG, JPEG, "https://host/cat.png")]
    audio = [
        {"type": "input_audio", "input_audio": {"data": data, "format": form}}
        for data, form in ((WAV, "wav"), (MP3, "mp3"))
    ]
    answer = server.exchange(content({"type": "input_text", "text": "x" * 40}, *images, *audio), path=PATH)
    assert answer.json["usage"]["input_tokens"] == 9 + 3 * 256 + 2 * 128
    parts = [{"type": "image_url", "image_url": {"url": PNG}}, audio[0]]
    server.exchange({"model": "m", "messages": [{"role": "user", "content": parts}]})
    stats = server.stats()
    assert (stats["images"], stats["audios"]) == (4, 3)
    assert [(entry["images"], entry["audios"]) for entry in server.logged_requests()] == [(3, 2), (1, 1)]


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        (request_body(model=""), "model is required"),
        ({"model": "m"}, "input is required"),
        (request_body(input=[]), "input is required"),
        (request_body(max_output_tokens=0), "max_output_tokens must be from 1"),
        (request_body(input=[{"role": "robot", "content": "x"}]), "role must be one of"),
        (request_body(input=[{"role": "user"}]), "a message needs content"),
        (content({"type": "text", "text": "x"}), "no content of the type 'text'"),
        (content({"type": "input_image", "image_url": {"url": PNG}}), "image_url"),
        (content({"type": "input_image", "image_url": "ftp://x"}), "must be an http"),
        (content({"type": "input_image", "image_url": "data:image/png;base64,eHh4eHh4"}), "does not hold an image"),
        (content({"type": "input_image", "image_url": "https://nowhere.invalid/a.png"}), "cannot be downloaded"),
        (content({"type": "input_audio", "input_audio": {"data": WAV, "format": "flac"}}), "one of wav, mp3"),
        (content({"type": "input_audio", "input_audio": {"data": WAV, "format": "mp3"}}), "is not mp3 audio"),
        (content({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}), "not base64"),
        (content({"type": "input_audio"}), "needs data and format"),
    ],
)
def test_invalid_body_is_rejected(mock: Any, body: dict[str, Any], fragment: str) -> None:
    answer = mock.exchange(body, path=PATH)
    assert answer.status == 400
    assert fragment in answer.json["error"]["message"]


@settings(max_examples=120, deadline=None)
@given(
    st.builds(
        Behaviour,
        chunk=st.integers(1, 4),
        reasoning=st.integers(0, 8),
        thoughts=st.sampled_from(["summary", "text"]),
        tools=st.booleans(),
        finish=st.booleans(),
        event_lines=st.booleans(),
        crlf=st.booleans(),
        framing=st.sampled_from(["auto", "chunked", "length", "eof"]),
        incomplete=st.sampled_from([None, "max_output_tokens", "content_filter"]),
    ),
    st.integers(1, 20),
    st.booleans(),
)
def test_whole_reply_and_its_steps_have_the_same_bytes(behaviour: Behaviour, tokens: int, stream: bool) -> None:
    dialect = Dialect()
    request = dialect.parse(
        json.dumps(request_body(stream=stream, max_output_tokens=tokens, instructions="x")).encode()
    )
    compiled = CompiledBehaviour(behaviour)
    planned = PlannedReply(request, behaviour, 3, has_output_kinds=True)
    reply_id = dialect.reply_id(planned, 5, 0)
    reply = Reply(compiled, dialect, planned, compiled.delivery(stream, True), number=3, reply_id=reply_id)
    block = reply.whole()
    assert b"".join(step[1] for step in reply.steps()) == block == reply.whole()
    assert b"#" not in block
    assert b"\x7f" not in block
