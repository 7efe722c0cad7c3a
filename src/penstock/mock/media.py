"""Images and sound in requests: what a server would refuse is refused, the rest counts a fixed number of tokens."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from urllib.parse import urlsplit

import msgspec

from penstock.mock.dialect import BadRequest

__all__ = ["InputAudio", "audio_tokens", "image_tokens"]

IMAGE_TOKENS = 256
AUDIO_TOKENS = 128
IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
SOUNDS = {"wav": (b"RIFF",), "mp3": (b"ID3", b"\xff")}
HEAD = 16


class InputAudio(msgspec.Struct):
    data: str
    format: str


def image_tokens(url: str | None, place: str) -> int:
    """The tokens of an image at this URL."""
    if not url:
        raise BadRequest("an image needs a URL", place)
    if url.startswith(("http://", "https://")):
        # The mock fetches nothing, but a name that cannot exist cannot be fetched by anyone.
        if (urlsplit(url).hostname or "").endswith(".invalid"):
            raise BadRequest(f"the image cannot be downloaded from {url}", place)
        return IMAGE_TOKENS
    start, comma, data = url.partition(",")
    if not comma or not start.startswith("data:image/") or not start.endswith(";base64"):
        raise BadRequest("an image must be an http(s) URL or a data URL with base64", place)
    if not first_bytes(data, place).startswith(IMAGES):
        raise BadRequest("the data URL does not hold an image of a known format", place)
    return IMAGE_TOKENS


def audio_tokens(audio: InputAudio | None, place: str) -> int:
    if audio is None:
        raise BadRequest("input_audio needs data and format", place)
    begins = SOUNDS.get(audio.format)
    if begins is None:
        raise BadRequest(f"the audio format must be one of {', '.join(SOUNDS)}, not {audio.format!r}", place)
    if not first_bytes(audio.data, place).startswith(begins):
        raise BadRequest(f"the data is not {audio.format} audio in base64", place)
    return AUDIO_TOKENS


def first_bytes(data: str, place: str) -> bytes:
    try:
        return b64decode(data[: HEAD * 4], validate=True)
    except (NotBase64, ValueError):
        raise BadRequest("the data is not base64", place) from None
