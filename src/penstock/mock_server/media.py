"""Images and audio in requests. Invalid ones are rejected; each valid one counts as a fixed number of tokens."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from urllib.parse import urlsplit

import msgspec

from penstock.mock_server.dialect import BadRequest

IMAGE_TOKENS = 256
AUDIO_TOKENS = 128
IMAGE_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
AUDIO_SIGNATURES = {"wav": (b"RIFF",), "mp3": (b"ID3", b"\xff")}
SIGNATURE_CHARACTERS = 64
"""Base64 characters that are decoded to find the signature."""


class InputAudio(msgspec.Struct):
    data: str
    format: str


def image_tokens(url: str | None, param: str) -> int:
    """Return the tokens of an image, or raise BadRequest for the parameter `param`."""
    if not url:
        raise BadRequest("an image needs a URL", param)
    if url.startswith(("http://", "https://")):
        # The mock downloads nothing, but no server could resolve a host in .invalid.
        if (urlsplit(url).hostname or "").endswith(".invalid"):
            raise BadRequest(f"the image cannot be downloaded from {url}", param)
        return IMAGE_TOKENS
    header, comma, data = url.partition(",")
    if not comma or not header.startswith("data:image/") or not header.endswith(";base64"):
        raise BadRequest("an image must be an http(s) URL or a data URL with base64", param)
    if not first_bytes(data, param).startswith(IMAGE_SIGNATURES):
        raise BadRequest("the data URL does not hold an image of a known format", param)
    return IMAGE_TOKENS


def audio_tokens(audio: InputAudio | None, param: str) -> int:
    """Return the tokens of an audio clip, or raise BadRequest for the parameter `param`."""
    if audio is None:
        raise BadRequest("input_audio needs data and format", param)
    signatures = AUDIO_SIGNATURES.get(audio.format)
    if signatures is None:
        formats = ", ".join(AUDIO_SIGNATURES)
        raise BadRequest(f"the audio format must be one of {formats}, not {audio.format!r}", param)
    if not first_bytes(audio.data, param).startswith(signatures):
        raise BadRequest(f"the data is not {audio.format} audio in base64", param)
    return AUDIO_TOKENS


def first_bytes(data: str, param: str) -> bytes:
    try:
        return b64decode(data[:SIGNATURE_CHARACTERS], validate=True)
    except (NotBase64, ValueError):
        raise BadRequest("the data is not base64", param) from None
