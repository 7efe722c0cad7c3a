"""Server-sent events: all accepted forms, and agreement of the fast path with the line parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import sse


def parts(body: bytes) -> tuple[list[bytes], list[int], list[bytes] | None]:
    events = sse.split(body)
    return events.data, events.ends, events.names


def data_of(body: bytes) -> list[bytes]:
    return parts(body)[0]


FORMS = {
    "the common form": b"data: one\n\ndata: two\n\n",
    "CRLF": b"data: one\r\n\r\ndata: two\r\n\r\n",
    "CR": b"data: one\r\rdata: two\r\r",
    "line ends mixed": b"data: one\r\n\ndata: two\r\r\n",
    "without the space": b"data:one\n\ndata:two\n\n",
    "a byte-order mark": b"\xef\xbb\xbfdata: one\n\ndata: two\n\n",
    "comments": b": hello\n\ndata: one\n\n:\n\n: ping\ndata: two\n: after\n\n",
    "no blank line at the end": b"data: one\n\ndata: two",
    "one line end at the end": b"data: one\n\ndata: two\n",
    "blank lines too many": b"\n\n\ndata: one\n\n\n\ndata: two\n\n\n",
    "other fields": b"id: 1\nretry: 10\ndata: one\n\nfoo: bar\nbaz\ndata: two\n\n",
    "an event without data": b"event: ping\n\ndata: one\n\nid: 4\n\ndata: two\n\n",
}


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS.keys())
def test_all_accepted_forms_give_the_same_events(body):
    assert data_of(body) == [b"one", b"two"]


def test_several_data_lines_are_one_event():
    assert data_of(b"data: a\ndata:  b\ndata\ndata:c\n\n") == [b"a\n b\n\nc"]


def test_event_names_are_parallel_to_the_data():
    body = b"event: start\ndata: a\n\ndata: b\n\nevent: error\ndata: c\n\n"
    assert parts(body)[2] == [b"start", b"", b"error"]


def test_names_are_none_if_no_event_has_one():
    assert parts(b": x\n\ndata: a\n\n")[2] is None


def test_event_ends_after_its_blank_line():
    body = b"data: one\n\n: ping\n\ndata: three\r\n\r\ndata: x"
    assert parts(body)[1] == [11, 34, len(body)]
    assert body[:11].endswith(b"one\n\n")
    assert body[:34].endswith(b"three\r\n\r\n")


def test_bodies_without_data_have_no_events():
    assert data_of(b"") == data_of(b"\n") == data_of(b"\n\n") == data_of(b": only a comment\n\n") == []


def test_truncated_last_event_is_kept_as_received():
    assert data_of(b'data: {"a":1}\n\ndata: {"a"') == [b'{"a":1}', b'{"a"']
    assert data_of(b'data: {"a":1}\n\nda') == [b'{"a":1}']


# -- fast path and line parser --------------------------------------------------------------------------------------

# Lines that could make the two differ.
lines = st.lists(
    st.sampled_from(
        [
            b"data: a",
            b"data: ",
            b"data:b",
            b"data",
            b": c",
            b"event: e",
            b"id: 1",
            b"",
            b"data: d: e",
            b"datax: f",
            b"\xff",
        ]
    ),
    max_size=12,
)
ends = st.sampled_from([b"\n", b"\n\n", b"\r\n", b"\r", b"\r\n\r\n"])


@given(st.lists(st.tuples(st.sampled_from([b"data: a", b"data: ", b"data:b", b": c", b"event: e", b"", b"x"]), ends)))
def test_fast_path_agrees_with_line_parser(rows):
    body = b"".join(line + end for line, end in rows)
    fast, slow = sse.split(body), sse._by_line(body)
    assert (fast.data, fast.ends) == (slow.data, slow.ends)
    assert fast.names == slow.names


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))))
def test_data_without_line_ends_is_unchanged(texts):
    body = b"".join(b"data: " + text + b"\n\n" for text in texts)
    assert parts(body)[0] == texts
    assert sse._by_line(body).data == texts
    assert sse._by_line(body).ends == parts(body)[1]


def oracle(body: bytes) -> list[bytes]:
    """The algorithm of the SSE standard, without optimizations."""
    events: list[bytes] = []
    data: list[bytes] = []
    text = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in [*text.split(b"\n"), b""]:
        if not line:
            if data:
                events.append(b"\n".join(data))
            data = []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
    return events


@given(lines, ends)
def test_events_are_those_of_the_standards_algorithm(rows, end):
    body = end.join(rows)
    assert data_of(body) == oracle(body)


@given(lines, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_event_is_complete_at_its_end_offset(rows, end, draw):
    """The body up to an event's end offset contains that event and all earlier ones."""
    body = end.join([*rows, b"", b""])
    events = sse.split(body)
    if not events.data:
        return
    number = draw.draw(st.integers(0, len(events.data) - 1))
    assert data_of(body[: events.ends[number]]) == events.data[: number + 1]
