"""Decoding of compressed replies, without I/O. Penstock asks for no compression, but some servers compress anyway."""

from __future__ import annotations

import zlib

__all__ = ["LARGEST", "BadCoding", "decoded"]

LARGEST = 256 << 20
"""The largest decoded body in bytes. A few kilobytes can decompress to gigabytes; no usable reply is larger than this."""

_ZLIB = (b"gzip", b"x-gzip", b"deflate")
_ANY_HEADER = zlib.MAX_WBITS | 32  # zlib detects the gzip or zlib header


class BadCoding(ValueError):
    """The body is not encoded as its header says; the text is a sentence for the user."""


def decoded(coding: bytes, body: bytes, largest: int = LARGEST) -> bytes:
    """Return the body without its content coding (given in lower case). Raise BadCoding."""
    if coding == b"identity" or not body:
        return body
    name = coding.decode("latin-1")
    if coding not in _ZLIB:
        raise BadCoding(f"The reply is encoded as '{name}', which was not asked for.")
    plain = b""
    while body:  # a gzip body can have several members
        decompressor = zlib.decompressobj(_ANY_HEADER)
        try:
            plain += decompressor.decompress(body, largest + 1 - len(plain))
        except zlib.error as error:
            raise BadCoding(f"The reply says {name} but is not: {error}.") from None
        if len(plain) > largest:
            raise BadCoding(f"The reply says {name} and decompresses to more than {largest:,} bytes.")
        if not decompressor.eof:
            raise BadCoding(f"The reply says {name} but ends before its end mark: it was cut short.")
        body = decompressor.unused_data
    return plain
