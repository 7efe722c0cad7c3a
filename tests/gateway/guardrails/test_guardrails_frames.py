"""Frames of a stream that arrives in portions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.guardrails.frames import Frame, Frames
from penstock.wire.sse import split

LINES = st.sampled_from(["data: a", "data:b", "data", "event: x", ": note", "id: 1", "nothing", "", ""])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))), st.lists(st.integers(0, 99)), st.booleans())
def test_portions_change_nothing(lines: list[tuple[str, str]], places: list[int], mark: bool) -> None:
    body = ("\ufeff" * mark + "".join(line + end for line, end in lines)).encode()
    frames = Frames()
    found: list[Frame] = []
    cuts = [0, *sorted(min(place, len(body)) for place in places), len(body)]
    for first, last in itertools.pairwise(cuts):
        found += frames.feed(body[first:last])
    rest = frames.rest()
    assert b"".join(frame.raw for frame in found) + rest == body
    data = [frame.data for frame in [*found, Frame(rest)] if frame.data is not None]
    assert data == split(body).data


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
