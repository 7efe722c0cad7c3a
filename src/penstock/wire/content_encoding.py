"""Content codings undone. We ask for none, but some servers compress all the same. No I/O."""

from __future__ import annotations

import zlib

__all__ = ["LARGEST", "BadCoding", "decoded"]

LARGEST = 256 << 20
"""A few kilobytes can unpack to gigabytes; no reply that is meant to be read is larger than this."""

_ZLIB = (b"gzip", b"x-gzip", b"deflate")
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib, by its first bytes


class BadCoding(ValueError):
    """The body cannot be read as its header says; the text is a sentence about it."""


def decoded(coding: bytes, body: bytes, largest: int = LARGEST) -> bytes:
    """The body without its coding (in lower case). Raises BadCoding."""
    if coding == b"identity" or not body:
        return body
    name = coding.decode("latin-1")
    if coding not in _ZLIB:
        raise BadCoding(f"The reply is encoded as '{name}', which was not asked for.")
    plain = b""
    while body:  # a gzip file may have several members
        reader = zlib.decompressobj(_ANY_HEADER)
        try:
            plain += reader.decompress(body, largest + 1 - len(plain))
        except zlib.error as error:
            raise BadCoding(f"The reply says {name} but is not: {error}.") from None
        if len(plain) > largest:
            raise BadCoding(f"The reply says {name} and unpacks to more than {largest:,} bytes.")
        if not reader.eof:
            raise BadCoding(f"The reply says {name} but ends before its end mark: it was cut short.")
        body = reader.unused_data
    return plain
