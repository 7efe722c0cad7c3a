"""Incremental decompression of streams. The gateway asks for uncompressed ones, but some servers ignore that. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from penstock.wire.content_encoding import BadCoding

CODINGS = (b"gzip", b"x-gzip", b"deflate")
PIECE_BYTES = 1 << 16
"""Maximum size of one decompressed piece: a few kilobytes can expand to megabytes. Only the last one is smaller."""
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib, by its first bytes


class Decompressor:
    def __init__(self) -> None:
        self._reader = zlib.decompressobj(_ANY_HEADER)
        self.complete = True
        """True if the input so far is a complete stream."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data in pieces; raise BadCoding for invalid input."""
        more_output = False
        while data or more_output:
            try:
                plain = self._reader.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise BadCoding(f"The stream cannot be decompressed: {error}.") from None
            data, more_output = self._reader.unconsumed_tail, len(plain) == PIECE_BYTES
            self.complete = self._reader.eof
            if self.complete:  # another gzip member may follow
                data, more_output = self._reader.unused_data, False
                self._reader = zlib.decompressobj(_ANY_HEADER)
            if plain:
                yield plain
