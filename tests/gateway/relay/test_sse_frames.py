"""Frames of a stream that arrives in portions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.sse_frames import FRAME_BYTES, Frame, Frames, Part
from penstock.wire.sse import split

LINES = st.sampled_from(["data: a", "data:b", "data", "event: x", ": note", "id: 1", "nothing", "", ""])


def framed(body: bytes, places: list[int], limit: int = FRAME_BYTES) -> list[Frame]:
    frames = Frames(limit)
    cuts = [0, *sorted(min(place, len(body)) for place in places), len(body)]
    found = [frame for first, last in itertools.pairwise(cuts) for frame in frames.feed(body[first:last])]
    rest = frames.rest()
    return found if rest is None else [*found, rest]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))), st.lists(st.integers(0, 99)), st.booleans())
def test_portions_change_nothing(lines: list[tuple[str, str]], places: list[int], mark: bool) -> None:
    body = ("\ufeff" * mark + "".join(line + end for line, end in lines)).encode()
    found = framed(body, places)
    assert b"".join(frame.raw for frame in found) == body
    assert [frame.data for frame in found if frame.data is not None] == split(body).data


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))),
    st.lists(st.integers(0, 99)),
    st.integers(1, 12),
)
def test_parts_are_the_bytes_of_a_frame_too_large(lines: list[tuple[str, str]], places: list[int], limit: int) -> None:
    body = "".join(line + end for line, end in lines).encode()
    found = framed(body, places, limit)
    assert b"".join(frame.raw for frame in found) == body
    open_ = False
    whole: list[bytes] = []
    for frame in found:
        begins, ends = (frame.begins, frame.ends) if isinstance(frame, Part) else (True, True)
        assert begins == (not open_)
        if begins:
            whole.append(b"")
        whole[-1] += frame.raw
        open_ = not ends
    assert not open_
    assert whole == [frame.raw for frame in framed(body, places)]


def test_no_more_is_kept_than_the_limit() -> None:
    frames = Frames(1000)
    for _ in range(5):
        for _ in range(300):
            frames.feed(b"x" * 99)
            assert len(frames) <= 1000
        *_, last = frames.feed(b"\n\ndata: 1\n\n")
        assert (len(frames), last.data) == (0, b"1")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_comment_alone_is_a_frame(end: str) -> None:
    """A ping: whoever sends it wants it to arrive."""
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
def test_other_data_in_the_same_frame(raw: bytes, data: bytes, expected: bytes) -> None:
    frame = Frame(raw)
    assert frame.with_data(data) == expected


def test_one_byte_at_a_time_is_not_quadratic() -> None:
    frames = Frames()
    body = b"data: " + b"x" * 300_000 + b"\n\n"
    found = [frame for place in range(len(body)) for frame in frames.feed(body[place : place + 1])]
    assert [frame.raw for frame in found] == [body]
