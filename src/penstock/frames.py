"""Frames in an append-only file: kind (1 byte), length and CRC-32 (4 bytes each, little endian), then the bytes.

A process killed in mid-write leaves a torn frame at the end of its file; reading stops before it and says how much is
left over.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Generator
from typing import BinaryIO

__all__ = ["HEAD", "pack", "read"]

HEAD = struct.Struct("<BII")


def pack(kind: int, data: bytes) -> bytes:
    return HEAD.pack(kind, len(data), zlib.crc32(data)) + data


def read(file: BinaryIO) -> Generator[tuple[int, bytes], None, int]:
    """The frames from where the file stands to its present end. Returns how many bytes after the last are none."""
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    while end - here >= HEAD.size:
        kind, length, crc = HEAD.unpack(file.read(HEAD.size))
        after = here + HEAD.size + length
        if after > end:
            break
        data = file.read(length)
        if zlib.crc32(data) != crc:
            break
        yield kind, data
        here = after
    return end - here
