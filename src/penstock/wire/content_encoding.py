"""Decoding of compressed replies, without I/O. Penstock asks for no compression, but some servers compress anyway."""

from __future__ import annotations

import zlib

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
    return b"".join(decoded_pieces(coding, [body], largest))


def decoded_pieces(coding: bytes, pieces: list[bytes], largest: int = LARGEST) -> list[bytes]:
    """Return, for each piece of a compressed body, the bytes that can be decoded once it has arrived. Raise BadCoding."""
    name = coding.decode("latin-1")
    if coding not in _ZLIB:
        raise BadCoding(f"The reply is encoded as '{name}', which was not asked for.")
    plain: list[bytes] = []
    remaining = largest
    decompressor = zlib.decompressobj(_ANY_HEADER)
    try:
        for data in pieces:
            output, piece = b"", data
            while piece:  # a gzip body can have several members
                if decompressor.eof:
                    decompressor = zlib.decompressobj(_ANY_HEADER)
                output += decompressor.decompress(piece, remaining + 1 - len(output))
                if len(output) > remaining:
                    raise BadCoding(f"The reply says {name} and decompresses to more than {largest:,} bytes.")
                piece = decompressor.unused_data
            remaining -= len(output)
            plain.append(output)
    except zlib.error as error:
        raise BadCoding(f"The reply says {name} but is not: {error}.") from None
    if not decompressor.eof:
        raise BadCoding(f"The reply says {name} but ends before its end mark: it was cut short.")
    return plain
