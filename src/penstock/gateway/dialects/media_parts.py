"""The images, audio and files of a request, which cost tokens but not in proportion to their bytes. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

MediaKind = Literal["images", "audio", "files"]

ENCODED = re.compile(rb'"data:[^"]*+"|"file_data"\s*:\s*"[^"]*+"|"data"\s*:\s*"[A-Za-z0-9+/=_\\-]{64,}+"')
"""Content of images, audio and files within a body. Quotes within strings are escaped, so a match is a member or a whole
string."""


class MediaParts(msgspec.Struct, frozen=True):
    """The number of parts of each kind, and the bytes of their content within the body."""

    images: int = 0
    audio: int = 0
    files: int = 0
    encoded_bytes: int = 0


_NONE = MediaParts()


def part_pattern(kinds: Mapping[str, MediaKind]) -> re.Pattern[bytes]:
    """Return the pattern that finds the parts with these values of `type`."""
    return re.compile(rb'"type"\s*:\s*"(%b)"' % "|".join(kinds).encode())


def find_media(body: bytes, pattern: re.Pattern[bytes], kinds: Mapping[str, MediaKind]) -> MediaParts:
    """Find the media parts of a body. Takes 0.6 ms for a megabyte."""
    found = [kinds[name.decode()] for name in pattern.findall(body)]
    if not found:
        return _NONE
    # A caller could let a text begin with `data:`, so there is no more content than there are parts.
    sizes = sorted((match.end() - match.start() for match in ENCODED.finditer(body)), reverse=True)
    return MediaParts(found.count("images"), found.count("audio"), found.count("files"), sum(sizes[: len(found)]))
