"""What passes is understood on the side, however it is cut up, and never changed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.relay.model_names import ModelNames, restore_model
from penstock.gateway.relay.usage import StreamReader, read_reply
from penstock.gateway.sse_frames import Frames, joined

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
    reader, frames = StreamReader(route), Frames()
    at = 0
    for size in [*sizes, len(data)]:
        for one in frames.feed(data[at : at + size]):
            reader.read(one)
        at += size
    if (rest := frames.rest()) is not None:
        reader.read(rest)
    return reader


def renamed(pieces: Iterable[bytes], alias: str) -> bytes:
    names, frames = ModelNames(alias), Frames()
    found = [frame for piece in pieces for frame in frames.feed(piece)]
    if (rest := frames.rest()) is not None:
        found.append(rest)
    for one in found:
        names.restore(one)
    return joined(found) if found else b""


@given(sizes=st.lists(st.integers(1, 40), max_size=60), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_pieces_do_not_matter(sizes: list[int], end: str) -> None:
    reader = read(responses(end), sizes)
    assert reader.usage is not None
    assert (reader.usage.input, reader.usage.output, reader.usage.reasoning) == (11, 7, 2)
    assert (reader.id, reader.finish, reader.terminal) == ("resp_1", "completed", True)
    assert (reader.events, reader.sequence, reader.tokens) == (3, 2, 1)


@given(st.lists(st.binary(max_size=60), max_size=20), st.sampled_from(["responses", "chat"]))
def test_rubbish_does_no_harm(pieces: list[bytes], route: Any) -> None:
    data = b"".join(pieces)
    read(data, [len(piece) for piece in pieces], route)
    if b'"model"' not in data:
        assert renamed(pieces, "alias") == data


def test_an_event_of_any_size_is_read_at_its_end() -> None:
    """The last event repeats the whole answer: more than is kept of it."""
    data = responses(filler='He said "usage": {"input_tokens": 1}. ' * 60_000)
    reader = read(data, [30_000] * 100)
    assert reader.usage is not None
    assert (reader.usage.input, reader.usage.output) == (11, 7)
    assert (reader.finish, reader.terminal) == ("completed", True)


def test_one_byte_at_a_time_is_not_quadratic() -> None:
    data = frame({"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 300_000}}]})
    assert read(data, [1] * len(data), "chat").tokens > 0
    pieces = (data[place : place + 1] for place in range(len(data)))
    assert renamed(pieces, "alias") == data.replace(b'"model": "gpt-x"', b'"model": "alias"')


def test_the_alias_also_behind_an_event_that_came_in_parts() -> None:
    chunk = {"id": "c1", "model": "gpt-x", "choices": [{"delta": {"content": "x" * 2_000_000}}]}
    data = frame(chunk) + frame({"id": "c1", "model": "gpt-x", "choices": []}) + frame("[DONE]")
    pieces = (data[place : place + 9_000] for place in range(0, len(data), 9_000))
    assert renamed(pieces, "alias") == data.replace(b'"model": "gpt-x"', b'"model": "alias"')


def test_a_last_event_without_its_blank_line() -> None:
    reader = read(responses().rstrip(b"\n"), [])
    assert reader.usage is not None
    assert reader.terminal


def test_chat() -> None:
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
def test_the_alias_in_every_event(sizes: list[int], end: str) -> None:
    chunks = [{"id": "c", "model": "gpt-x-2024", "choices": [{"delta": {"content": 'a "model": "gpt-x-2024" b'}}]}] * 3
    data = b"".join(frame(chunk, None, end) for chunk in chunks) + frame("[DONE]", None, end)
    ends = [0, *itertools.accumulate(sizes), len(data)]
    out = renamed((data[start:end] for start, end in itertools.pairwise(ends)), "the alias")
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
def test_the_alias_in_a_whole_reply(body: bytes, restored: bytes) -> None:
    assert restore_model(body, bytes(read_reply(body).model), b'"alias"') == restored


@pytest.mark.parametrize("lead", [b"data: ", b"data:", b": ping\nid: 7\nevent: chunk\ndata: ", b"\xef\xbb\xbfdata: "])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_alias_wherever_it_stands_in_the_events(lead: bytes, end: bytes) -> None:
    """The first spelling is not the last, and what is no top-level member is not the model's name."""
    half = (b'{"\\ud800":[{"model":"in"}],"model":"gpt-x"}', b'{"\\ud800":[{"model":"in"}],"model":"alias"}')
    given = b"".join(lead + body + end for body, _ in [*MODELS, half])
    assert renamed([given], "alias") == b"".join(lead + restored + end for _, restored in [*MODELS, half])


def test_the_alias_in_data_of_several_lines() -> None:
    given = b'event: x\ndata: {"choices": [],\ndata:"model": "gpt-x",\r\ndata:  "created": 1}\n\n'
    assert renamed([given], "alias") == given.replace(b"gpt-x", b"alias")


@pytest.mark.parametrize("body", [b"", b"{", b"{}x", b"\xff"])
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_reply(body)


@pytest.mark.parametrize(
    "body", [b"[]", b"3", b'{"choices": 3, "usage": "no", "id": []}', b'{"usage": {"input_tokens": "3"}}']
)
def test_json_that_says_nothing_about_itself(body: bytes) -> None:
    reply = read_reply(body)
    assert (reply.reported, reply.name, reply.finish) == (None, None, None)
