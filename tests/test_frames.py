"""Complete frames of an append-only file are read, even if the file ends in a damaged frame."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from penstock import frames

rows = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), min_size=1, max_size=6)


def read(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the frames and the number of bytes left over."""
    reader = frames.Reader(io.BytesIO(data))
    return list(reader), reader.left


@given(rows)
def test_packed_frames_are_read_back(rows):
    assert read(b"".join(frames.pack(*row) for row in rows)) == (rows, 0)


@given(rows, st.data())
def test_truncated_file_yields_the_complete_frames_and_the_bytes_left_over(rows, draw):
    packed = [frames.pack(*row) for row in rows]
    data = b"".join(packed)
    cut = draw.draw(st.integers(0, len(data)))
    complete, size = 0, 0
    while complete < len(packed) and size + len(packed[complete]) <= cut:
        size += len(packed[complete])
        complete += 1
    assert read(data[:cut]) == (rows[:complete], cut - size)


@given(rows, st.data())
def test_flipped_bit_is_never_read_as_data(rows, draw):
    data = bytearray(b"".join(frames.pack(*row) for row in rows))
    position = draw.draw(st.integers(0, len(data) - 1))
    kind_positions = set()
    offset = 0
    for row in rows:
        kind_positions.add(offset)
        offset += len(frames.pack(*row))
    data[position] ^= 1 << draw.draw(st.integers(0, 7))
    result, _ = read(bytes(data))
    if position not in kind_positions:  # the kind is not part of the checksum
        assert result == rows[: len(result)]
        assert len(result) < len(rows)


KINDS = b"\x01\x02"
intact_rows = st.lists(st.tuples(st.sampled_from(KINDS), st.binary(min_size=1, max_size=60)), min_size=2, max_size=6)


@given(intact_rows, st.binary(max_size=40))
def test_first_intact_frame_after_damage_is_found(rows, damage):
    data = b"".join(frames.pack(*row) for row in rows)
    position = frames.find(damage + data, 0, KINDS)
    assert position is not None
    assert position <= len(damage)
    assert read((damage + data)[position:])[0][-len(rows) :] == rows


@given(intact_rows, st.data())
def test_no_frame_is_found_in_the_rest_of_a_torn_frame(rows, draw):
    frame = frames.pack(*rows[0])
    assert frames.find(frame[: draw.draw(st.integers(0, len(frame) - 1))], 1, KINDS) is None


def test_huge_length_in_damaged_data_is_not_followed():
    assert frames.find(b"\x01\xff\xff\xff\xff" * 10 + frames.pack(2, b"report"), 0, KINDS) == 50
