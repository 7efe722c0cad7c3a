"""Reading usage from replies, and restoring the alias, however a stream is split."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.dialects.base import Reply, StreamReader
from penstock.gateway.dialects.sse_frames import Frames, WholeReply, joined
from penstock.gateway.outbound.model_names import ModelNames
from penstock.gateway.routes import BY_NAME

USAGE = {"input_tokens": 11, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2}}


def frame(data: Any, name: str | None = None, end: str = "\n") -> bytes:
    lines = [f"event: {name}"] if name else []
    lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}")
    return (end.join(lines) + end + end).encode()


def responses(end: str = "\n", filler: str = "text") -> bytes:
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "usage": None}},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": filler},
        {"type": "response.completed", "sequence_number": 2, "response": {"id": "resp_1", "x": filler, "usage": USAGE}},
    ]
    return b"".join(frame(event, event["type"], end) for event in events)


def read(data: bytes, sizes: list[int], route: Any = "responses") -> StreamReader:
    reader, frames = BY_NAME[route].stream_reader(), Frames()
    start = 0
    for size in [*sizes, len(data)]:
        for complete in frames.feed(data[start : start + size]):
            reader.read(complete)
        start += size
    if (rest := frames.rest()) is not None:
        reader.read(rest)
    return reader


def read_reply(body: bytes) -> Reply:
    return BY_NAME["chat"].read_reply(body)


def with_alias(pieces: Iterable[bytes], alias: str) -> bytes:
    names, frames = ModelNames(alias), Frames()
    restored = [frame for piece in pieces for frame in frames.feed(piece)]
    if (rest := frames.rest()) is not None:
        restored.append(rest)
    for frame in restored:
        names.restore(frame)
    return joined(restored) if restored else b""


@given(sizes=st.lists(st.integers(1, 40), max_size=60), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_usage_does_not_depend_on_how_the_stream_is_split(sizes: list[int], end: str) -> None:
    reader = read(responses(end), sizes)
    assert reader.usage is not None
    assert (reader.usage.input, reader.usage.output, reader.usage.reasoning) == (11, 7, 2)
    assert (reader.id, reader.finish, reader.terminal) == ("resp_1", "completed", True)
    assert (reader.events, reader.sequence, reader.tokens) == (3, 2, 1)


@given(st.lists(st.binary(max_size=60), max_size=20), st.sampled_from(["responses", "chat"]))
def test_arbitrary_bytes_raise_nothing_and_pass_unchanged(pieces: list[bytes], route: Any) -> None:
    data = b"".join(pieces)
    read(data, [len(piece) for piece in pieces], route)
    if b'"model"' not in data:
        assert with_alias(pieces, "alias") == data


def test_usage_is_read_from_an_event_of_any_size() -> None:
    """The last event repeats the whole reply, which exceeds the limit of a frame."""
    data = responses(filler='He said "usage": {"input_tokens": 1}. ' * 60_000)
    reader = read(data, [30_000] * 100)
    assert reader.usage is not None
    assert (reader.usage.input, reader.usage.output) == (11, 7)
    assert (reader.finish, reader.terminal) == ("completed", True)


def test_reading_single_bytes_is_not_quadratic() -> None:
    data = frame({"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 300_000}}]})
    assert read(data, [1] * len(data), "chat").tokens > 0
    pieces = (data[start : start + 1] for start in range(len(data)))
    assert with_alias(pieces, "alias") == data.replace(b'"model": "gpt-x"', b'"model": "alias"')


def test_alias_is_restored_in_and_after_an_event_in_parts() -> None:
    chunk = {"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 2_000_000}}]}
    data = frame(chunk) + frame({"id": "c1", "model": "gpt-x", "choices": []}) + frame("[DONE]")
    pieces = (data[start : start + 9_000] for start in range(0, len(data), 9_000))
    assert with_alias(pieces, "alias") == data.replace(b'"model": "gpt-x"', b'"model": "alias"')


def test_last_event_without_blank_line_is_read() -> None:
    reader = read(responses().rstrip(b"\n"), [])
    assert reader.usage is not None
    assert reader.terminal


def test_chat_stream_usage_and_finish_are_read() -> None:
    chunks = [
        {
            "id": "c1",
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": "Hello there"}, "finish_reason": None}],
        },
        {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
        {"id": "c1", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ]
    reader = read(b"".join(map(frame, chunks)) + frame("[DONE]"), [], "chat")
    assert reader.usage is not None
    assert (reader.usage.input, reader.usage.output) == (3, 4)
    assert (reader.id, reader.finish, reader.terminal, reader.events) == ("c1", "length", True, 4)
    assert reader.tokens == 3


@given(sizes=st.lists(st.integers(1, 60), max_size=40), end=st.sampled_from(["\n", "\r\n"]))
def test_alias_is_restored_in_every_event(sizes: list[int], end: str) -> None:
    chunks = [{"id": "c", "model": "gpt-x-2024", "choices": [{"delta": {"content": 'a "model": "gpt-x-2024" b'}}]}] * 3
    data = b"".join(frame(chunk, None, end) for chunk in chunks) + frame("[DONE]", None, end)
    ends = [0, *itertools.accumulate(sizes), len(data)]
    out = with_alias((data[start:end] for start, end in itertools.pairwise(ends)), "the alias")
    assert out == data.replace(b', "model": "gpt-x-2024"', b', "model": "the alias"')


MODELS = [
    (b'{"id":"c","model":"","choices":[]}', b'{"id":"c","model":"alias","choices":[]}'),
    (b'{"x": {"model": "other"}, "model" : "gpt-x"}', b'{"x": {"model": "other"}, "model" : "alias"}'),
    (b'{"choices":[{"model":"in"}],"model":"gpt-x"}', b'{"choices":[{"model":"in"}],"model":"alias"}'),
    (b'{"model":"gpt-x","text":"\\"model\\":\\"gpt-x\\""}', b'{"model":"alias","text":"\\"model\\":\\"gpt-x\\""}'),
    (b'{"m\\u006fdel":"gpt-x", "x": {"model": 1}}', b'{"m\\u006fdel":"alias", "x": {"model": 1}}'),
    (b'{"choices":[{"model":"in"}]}', b'{"choices":[{"model":"in"}]}'),
    (b'{"model":null}', b'{"model":"alias"}'),
]  # fmt: skip


@pytest.mark.parametrize(("body", "restored"), MODELS)
def test_alias_is_restored_in_a_whole_reply(body: bytes, restored: bytes) -> None:
    reply = WholeReply(body)
    ModelNames("alias").restore(reply)
    assert reply.raw == restored


@pytest.mark.parametrize("lead", [b"data: ", b"data:", b": ping\nid: 7\nevent: chunk\ndata: ", b"\xef\xbb\xbfdata: "])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_alias_is_restored_for_any_position_and_spelling_of_model(lead: bytes, end: bytes) -> None:
    """Events may spell the member differently, and a nested `model` is not replaced."""
    half = (b'{"\\ud800":[{"model":"in"}],"model":"gpt-x"}', b'{"\\ud800":[{"model":"in"}],"model":"alias"}')
    stream = b"".join(lead + body + end for body, _ in [*MODELS, half])
    assert with_alias([stream], "alias") == b"".join(lead + restored + end for _, restored in [*MODELS, half])


def test_alias_is_restored_in_multi_line_data() -> None:
    stream = b'event: x\ndata: {"choices": [],\ndata:"model": "gpt-x",\r\ndata:  "created": 1}\n\n'
    assert with_alias([stream], "alias") == stream.replace(b"gpt-x", b"alias")


@pytest.mark.parametrize("body", [b"", b"{", b"{}x", b"\xff"])
def test_invalid_json_reply_raises_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_reply(body)


@pytest.mark.parametrize(
    "body", [b"[]", b"3", b'{"choices": 3, "usage": "no", "id": []}', b'{"usage": {"input_tokens": "3"}}']
)
def test_json_of_another_shape_has_no_usage(body: bytes) -> None:
    reply = read_reply(body)
    assert (reply.reported, reply.reply_id, reply.finish) == (None, None, None)
