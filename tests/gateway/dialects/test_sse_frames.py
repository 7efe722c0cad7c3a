"""Frames of a stream that arrives in arbitrary pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.dialects.sse_frames import FRAME_BYTES, Frame, Frames, Part
from penstock.wire.sse import split

LINES = st.sampled_from(["data: a", "data:b", "data", "event: x", ": note", "id: 1", "nothing", "", ""])


def framed(body: bytes, positions: list[int], limit: int = FRAME_BYTES) -> list[Frame]:
    frames = Frames(limit)
    cuts = [0, *sorted(min(position, len(body)) for position in positions), len(body)]
    complete = [frame for first, last in itertools.pairwise(cuts) for frame in frames.feed(body[first:last])]
    rest = frames.rest()
    return complete if rest is None else [*complete, rest]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))), st.lists(st.integers(0, 99)), st.booleans())
def test_frames_do_not_depend_on_how_input_is_split(
    lines: list[tuple[str, str]], positions: list[int], bom: bool
) -> None:
    body = ("\ufeff" * bom + "".join(line + end for line, end in lines)).encode()
    parsed = framed(body, positions)
    assert b"".join(frame.raw for frame in parsed) == body
    assert [frame.data for frame in parsed if frame.data is not None] == split(body).data


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))),
    st.lists(st.integers(0, 99)),
    st.integers(1, 12),
)
def test_parts_of_a_large_frame_add_up_to_it(lines: list[tuple[str, str]], positions: list[int], limit: int) -> None:
    body = "".join(line + end for line, end in lines).encode()
    parsed = framed(body, positions, limit)
    assert b"".join(frame.raw for frame in parsed) == body
    in_parts = False
    whole: list[bytes] = []
    for frame in parsed:
        begins, ends = (frame.begins, frame.ends) if isinstance(frame, Part) else (True, True)
        assert begins == (not in_parts)
        if begins:
            whole.append(b"")
        whole[-1] += frame.raw
        in_parts = not ends
    assert not in_parts
    assert whole == [frame.raw for frame in framed(body, positions)]


def test_buffer_never_exceeds_the_limit() -> None:
    frames = Frames(1000)
    for _ in range(5):
        for _ in range(300):
            frames.feed(b"x" * 99)
            assert len(frames) <= 1000
        *_, last = frames.feed(b"\n\ndata: 1\n\n")
        assert (len(frames), last.data) == (0, b"1")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comment_alone_is_a_frame(end: str) -> None:
    """Servers send comments as keep-alive, so they must be relayed at once."""
    frames = Frames()
    ping = f":{end}{end}".encode()
    assert [frame.raw for frame in frames.feed(ping)] == [ping]


@pytest.mark.parametrize(
    ("raw", "data", "expected"),
    [
        (b"data: old\n\n", b"new", b"data: new\n\n"),
        (b"event: e\ndata: old\n\n", b"new", b"event: e\ndata: new\n\n"),
        (b"data: old\r\ndata: er\r\nid: 1\r\n\r\n", b"new", b"data: new\r\nid: 1\r\n\r\n"),
        (b"\xef\xbb\xbf: note\ndata:old\n\n", b"two\nlines", b"\xef\xbb\xbf: note\ndata: two\ndata: lines\n\n"),
        (b"data: old", b"new", b"data: new\n"),
    ],
)
def test_with_data_replaces_only_the_data(raw: bytes, data: bytes, expected: bytes) -> None:
    frame = Frame(raw)
    assert frame.with_data(data) == expected


def test_feeding_single_bytes_is_not_quadratic() -> None:
    frames = Frames()
    body = b"data: " + b"x" * 300_000 + b"\n\n"
    parsed = [frame for start in range(len(body)) for frame in frames.feed(body[start : start + 1])]
    assert [frame.raw for frame in parsed] == [body]
