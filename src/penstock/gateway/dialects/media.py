"""The texts in encoded files, images and sounds.

The content of a file decides what it holds, not the type that the caller names.
A known binary format is not text. Anything else is: UTF-8, or else each of UTF-16 (both byte orders) and Windows-1252, because
nothing tells which of them its reader will choose.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import quote, unquote_to_bytes

_SIGNATURES = (
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"RIFF", b"BM", b"II*\0", b"MM\0*"),  # images
    *(b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"\x1f\x8b", b"7z\xbc\xaf\x27\x1c"),  # documents
    *(b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf1", b"OggS", b"fLaC", b"\x1a\x45\xdf\xa3"),  # sound and video
)
_MP4 = b"ftyp"
"""At offset 4 of MP4, HEIC and AVIF."""
_PROBE = 4096
"""Characters from which the format is recognised."""
_MAX_CHARACTER = 3
"""Bytes of an incomplete UTF-8 character."""
_SHORT = 64
"""Characters of a file that may be a plain word as well as base64."""
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_LEADING = " \t\r\n\0\ufeff"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*")
_REDACTED = "[REDACTED]"
_GUESSES = ("utf-16-le", "utf-16-be", "cp1252")


class EncodedText:
    """A text in an encoded value, and how to encode it again."""

    def __init__(self, text: str, head: str = "", *, is_base64: bool | None, guessed: bool = False) -> None:
        """`is_base64` is False for a percent-encoded text, and None for one that is not encoded."""
        self.text = text
        self._head = head
        self._is_base64 = is_base64
        self._guessed = guessed

    def write(self, text: str) -> str:
        """Encode the masked text. If its encoding is a guess, a mask replaces all of it."""
        text = _REDACTED if self._guessed else text
        if self._is_base64 is None:
            return text
        return self._head + (base64.b64encode(text.encode()).decode() if self._is_base64 else quote(text))


def encoded_texts(value: str, *, is_file: bool) -> list[EncodedText]:
    """Return the texts of a data URL, of base64, or of a file that is plain text. Other URLs have none."""
    stripped = value.lstrip(_LEADING)
    head, comma, payload = stripped.partition(",")
    if comma and head[:5].lower() == "data:":
        head, is_base64 = head + comma, head.rstrip().lower().endswith(";base64")
    else:
        head, payload, is_base64 = "", stripped, True
    probe = _decode(payload[:_PROBE], is_base64=is_base64)
    data = probe if probe is None or len(payload) <= _PROBE else _decode(payload, is_base64=is_base64)
    if probe is None or data is None:
        return [] if not is_file and not head and _URL.fullmatch(stripped) else [EncodedText(value, is_base64=None)]
    if _is_binary(probe):
        return []
    text = _utf8(data)
    is_plain = is_file and not head and _may_be_plain(value)
    if text is not None and "\0" not in text and not is_plain:
        return [EncodedText(text, head, is_base64=is_base64)] if text else []
    texts = [data.decode(codec, "replace") for codec in _GUESSES] + [text or ""] + [value] * is_plain
    return [EncodedText(guess, head, is_base64=is_base64, guessed=True) for guess in texts if guess]


def _may_be_plain(value: str) -> bool:
    """Return True if what can be read as base64 may be words. Base64 has no spaces, and long lines of equal length."""
    lengths = set(map(len, value.split()[:-1]))
    return len(value) < _SHORT or " " in value or len(lengths) > 1 or any(length < _SHORT for length in lengths)


def decode_payload(payload: str, *, encoded: bool) -> str | None:
    """Return the text of the payload of a data URL, or None if it is not UTF-8. A truncated one is decoded to its end."""
    data = _decode(payload, is_base64=encoded)
    text = None if data is None else _utf8(data)
    return None if text is None or "\0" in text else text


def _decode(payload: str, *, is_base64: bool) -> bytes | None:
    """Return the bytes of a payload, or None if it is not base64."""
    data = unquote_to_bytes(payload)
    if not is_base64:
        return data
    data = data.translate(_URL_SAFE, b" \r\n\t=")
    data = data[: len(data) - (len(data) % 4 == 1)]
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except binascii.Error:
        return None


def _utf8(data: bytes) -> str | None:
    """Return the text, without an incomplete last character; None if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode() if len(data) - error.start <= _MAX_CHARACTER else None


def _is_binary(start: bytes) -> bool:
    """Return True if the data has a known binary format. Text that begins like one is text."""
    if not start.startswith(_SIGNATURES) and start[4:8] != _MP4:
        return False
    text = _utf8(start)
    return text is None or "\0" in text
