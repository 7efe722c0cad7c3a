"""A compressed stream, unpacked as it comes. None is asked for, but some servers compress all the same. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from penstock.wire.content_encoding import BadCoding

__all__ = ["CODINGS", "Unpacker"]

CODINGS = (b"gzip", b"x-gzip", b"deflate")
PIECE = 1 << 18
"""What is unpacked at once: a few kilobytes can become megabytes."""
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib, by its first bytes


class Unpacker:
    __slots__ = ("_reader", "whole")

    def __init__(self) -> None:
        self._reader = zlib.decompressobj(_ANY_HEADER)
        self.whole = True
        """What was fed so far may end here."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes tell; raises BadCoding."""
        full = False
        while data or full:
            try:
                plain = self._reader.decompress(data, PIECE)
            except zlib.error as error:
                raise BadCoding(f"The stream cannot be unpacked: {error}.") from None
            data, full = self._reader.unconsumed_tail, len(plain) == PIECE
            self.whole = self._reader.eof
            if self.whole:  # another member may follow
                data, full = self._reader.unused_data, False
                self._reader = zlib.decompressobj(_ANY_HEADER)
            if plain:
                yield plain
