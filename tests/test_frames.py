"""Frames in an append-only file: what was written whole is read, whatever happened behind it."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from penstock import frames

rows = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), min_size=1, max_size=6)


def read(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """The frames, and how many bytes are left over."""
    reading = frames.read(io.BytesIO(data))
    found = []
    while True:
        try:
            found.append(next(reading))
        except StopIteration as end:
            return found, end.value


@given(rows)
def test_what_goes_in_comes_out(rows):
    assert read(b"".join(frames.pack(*row) for row in rows)) == (rows, 0)


@given(rows, st.data())
def test_a_file_cut_anywhere_gives_the_frames_before_the_cut_and_says_what_is_left_over(rows, draw):
    packed = [frames.pack(*row) for row in rows]
    data = b"".join(packed)
    cut = draw.draw(st.integers(0, len(data)))
    whole, size = 0, 0
    while whole < len(packed) and size + len(packed[whole]) <= cut:
        size += len(packed[whole])
        whole += 1
    assert read(data[:cut]) == (rows[:whole], cut - size)


@given(rows, st.data())
def test_a_flipped_bit_never_passes_for_data(rows, draw):
    data = bytearray(b"".join(frames.pack(*row) for row in rows))
    place = draw.draw(st.integers(0, len(data) - 1))
    kind_at = set()
    at = 0
    for row in rows:
        kind_at.add(at)
        at += len(frames.pack(*row))
    data[place] ^= 1 << draw.draw(st.integers(0, 7))
    found, _ = read(bytes(data))
    if place not in kind_at:  # the kind is not part of the checksum
        assert found == rows[: len(found)]
        assert len(found) < len(rows)
