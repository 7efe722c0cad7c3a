"""Complete frames of an append-only file are read, even if the file ends in a damaged frame."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from penstock import frames

rows = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), min_size=1, max_size=6)


def read(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the frames and the number of bytes left over."""
    reader = frames.read(io.BytesIO(data))
    result = []
    while True:
        try:
            result.append(next(reader))
        except StopIteration as end:
            return result, end.value


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
