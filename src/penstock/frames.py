"""Frames of an append-only file: kind (1 byte), length and CRC-32 (4 bytes each, little endian), then the data.

A process that is killed while it writes leaves an incomplete frame at the end. Reading stops before that frame and tells
the number of bytes left over. If an earlier frame is damaged, `find` returns the position of the next intact one.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

HEAD = struct.Struct("<BII")
_BLOCK = 1 << 18


def pack(kind: int, data: bytes) -> bytes:
    return HEAD.pack(kind, len(data), zlib.crc32(data)) + data


class Reader:
    """Iterates over the frames of a file, from its current position on, as (kind, data)."""

    def __init__(self, file: BinaryIO, end: int | None = None, passed_over: bytes = b"") -> None:
        """`end` is by default the current end of the file. Frames of the kinds in `passed_over` are neither checked nor
        yielded."""
        self._file = file
        self._position = file.tell()
        size = file.seek(0, os.SEEK_END)
        self._end = size if end is None else min(end, size)
        self._passed_over = passed_over
        self.left = 0
        """Number of bytes after the last frame; known after the iteration."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        file, position, end, passed_over = self._file, self._position, self._end, self._passed_over
        unpack, crc32, head = HEAD.unpack_from, zlib.crc32, HEAD.size
        file.seek(position)
        block, at = b"", 0
        while end - position >= head:
            if len(block) - at < head:
                block, at = block[at:] + file.read(min(_BLOCK, end - position)), 0
            kind, length, crc = unpack(block, at)
            if position + head + length > end:
                break
            if kind in passed_over:
                position += head + length
                at += head + length
                if at > len(block):
                    block, at = b"", 0
                    file.seek(position)
                continue
            if at + head + length > len(block):
                block, at = block[at:] + file.read(max(_BLOCK, head + length)), 0
            begin = at + head
            at = begin + length
            data = block[begin:at]
            if crc32(data) != crc:
                break
            yield kind, data
            position += head + length
        self.left = end - position


def find(data: bytes | mmap.mmap, position: int, kinds: bytes) -> int | None:
    """Return the position of the first intact frame of one of these kinds, at or after `position`.

    Lengths in damaged data can be anything. To compute few checksums, `find` skips candidates that are empty, or that are
    followed by neither a frame of these kinds nor the end.
    """
    end = len(data)
    for match in re.compile(b"[" + re.escape(kinds) + b"]").finditer(data, position):
        start = match.start()
        if end - start < HEAD.size:
            break
        _, length, crc = HEAD.unpack_from(data, start)
        stop = start + HEAD.size + length
        if not length or stop > end or (stop < end and data[stop] not in kinds):
            continue
        if zlib.crc32(data[start + HEAD.size : stop]) == crc:
            return start
    return None
