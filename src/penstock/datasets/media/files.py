"""Images and sound that the user brings: where they are, whether they are what they should be, and how they are sent.

A dataset names a file by its path. It is looked at when the dataset is read, so that a mistake is told with its line, and
read when the body is made, so that a thousand pictures are not in memory at once.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.datasets.conversation import Media, Turn
from penstock.errors import UserError

__all__ = ["MediaFiles", "audio_of", "image_of", "image_type", "sound_type"]

_HEAD = 64
"""Bytes that tell the kind of a file."""
_KEPT_BYTES = 64 << 20
"""Of encoded files, kept for the next body that shows them."""
_IMAGES = "PNG, JPEG, WebP, GIF, BMP or TIFF"
_SOUNDS = "WAV, MP3, FLAC, Ogg or M4A"


def image_of(text: str, folder: str) -> Media:
    """From a URL, a data URL or a path; a ValueError says what is wrong with it."""
    if _is_web(text):
        return Media(text)
    if text[:5].lower() == "data:":
        return Media(text, _checked_data_url(text))
    path, head = _opened(text, folder)
    kind = image_type(head)
    if kind is None:
        raise ValueError(f"'{text}' is not an image ({_IMAGES})")
    return Media("", kind, path)


def audio_of(text: str, folder: str) -> Media:
    """From a URL, a data URL, `wav,<base64>` or a path; a ValueError says what is wrong with it."""
    if _is_web(text):
        return Media(text, _ending(text) or "wav")
    if text[:5].lower() == "data:":
        return _sound_data(text, text.partition(",")[2])
    start, comma, rest = text[:8].partition(",")
    if comma and start.lower() in ("wav", "mp3"):
        return _sound_data(f"{start},…", text[len(start) + 1 :] if rest else "")
    path, head = _opened(text, folder)
    kind = sound_type(head)
    if kind is None:
        raise ValueError(f"'{text}' is not audio ({_SOUNDS})")
    return Media("", kind, path)


class MediaFiles:
    """Reads the files of turns. What was used last stays at hand for the next body that shows it, up to so many bytes."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most = most_bytes
        self._texts: dict[str, str] = {}
        """By path, what was used last in the last place."""
        self._size = 0

    def inlined(self, turn: Turn) -> Turn:
        """The turn with what its files hold."""
        if all(each.path is None for each in (*turn.images, *turn.audios)):
            return turn
        images = tuple([Media(self._data_url(each), each.format) if each.path else each for each in turn.images])
        audios = tuple([Media(self._base64(each.path), each.format) if each.path else each for each in turn.audios])
        return msgspec.structs.replace(turn, images=images, audios=audios)

    def _data_url(self, image: Media) -> str:
        return f"data:image/{image.format};base64,{self._base64(image.path or '')}"

    def _base64(self, path: str) -> str:
        text = self._texts.pop(path, None)
        if text is None:
            text = _encoded(path)
            self._size += len(text)
        self._texts[path] = text
        while self._size > self._most:
            self._size -= len(self._texts.pop(next(iter(self._texts))))
        return text


def image_type(head: bytes) -> str | None:
    """The kind of image that begins so."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0":
        return "bmp"
    return "tiff" if head.startswith((b"II*\0", b"MM\0*")) else None


def sound_type(head: bytes) -> str | None:
    """The kind of sound that begins so."""
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        return "wav"
    if head.startswith(b"ID3") or (head[:1] == b"\xff" and len(head) > 2 and _is_mpeg_frame(head[1], head[2])):
        return "mp3"
    if head.startswith(b"fLaC"):
        return "flac"
    if head.startswith(b"OggS"):
        return "ogg"
    return "m4a" if head[4:8] == b"ftyp" else None


def _is_mpeg_frame(second: int, third: int) -> bool:
    """Synchronised, layer III, with a bitrate and a sample rate that exist."""
    return second & 0xE0 == 0xE0 and second & 0x06 == 0x02 and third >> 4 not in (0, 15) and third & 0x0C != 0x0C


def _is_web(text: str) -> bool:
    return text[:7].lower() == "http://" or text[:8].lower() == "https://"


def _ending(url: str) -> str:
    return os.path.splitext(urlsplit(url).path)[1].removeprefix(".").lower()


def _checked_data_url(text: str) -> str:
    """The kind of image in a data URL."""
    start, comma, data = text.partition(",")
    shown = start[:60] + ",…"
    if not comma or not start.lower().startswith("data:image/") or not start.lower().endswith(";base64"):
        raise ValueError(f"'{shown}' is not the data URL of an image, which begins with data:image/…;base64,")
    kind = image_type(_first_bytes(data, shown))
    if kind is None:
        raise ValueError(f"the data URL '{shown}' does not hold an image ({_IMAGES})")
    return kind


def _sound_data(shown: str, data: str) -> Media:
    shown = shown.partition(",")[0][:60] + ",…"
    kind = sound_type(_first_bytes(data, shown))
    if kind is None:
        raise ValueError(f"'{shown}' does not hold audio ({_SOUNDS})")
    return Media(data, kind)


def _first_bytes(data: str, shown: str) -> bytes:
    """The first bytes of base64. All of it is looked at, because a server would refuse what is wrong at the end."""
    try:
        b64decode(data, validate=True)
        return b64decode(data[: _HEAD // 3 * 4])
    except (NotBase64, ValueError):
        raise ValueError(f"'{shown}' is not followed by base64") from None


def _opened(text: str, folder: str) -> tuple[str, bytes]:
    """The path and the first bytes. A relative path counts from where the user is, else from where the dataset is."""
    if text[:7].lower() == "file://":
        text = unquote(urlsplit(text).path)
    path = os.path.expanduser(text)
    if not os.path.isabs(path) and not os.path.exists(path):
        beside = os.path.join(folder, path)
        path = beside if os.path.exists(beside) else path
    try:
        with open(path, "rb") as file:
            return os.path.abspath(path), file.read(_HEAD)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name has a null character in it"
        raise ValueError(f"'{text}' cannot be read: {reason}") from None


def _encoded(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return b64encode(file.read()).decode()
    except OSError as error:
        raise UserError(f"'{path}' was there a moment ago and cannot be read now: {error.strerror}.") from None
