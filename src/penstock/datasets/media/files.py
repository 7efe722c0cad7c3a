"""Images and audio that a dataset refers to by path, URL or data URL.

The type of a file is checked when the dataset is read, so that an error names the line. Its content is read when the
body is built, so that not all files are in memory.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.datasets.conversation import Media, Turn
from penstock.errors import UserError

_HEAD = 64
"""Bytes from which the type of a file is detected."""
_CACHE_BYTES = 64 << 20
_IMAGE_FORMATS = "PNG, JPEG, WebP, GIF, BMP or TIFF"
_AUDIO_FORMATS = "WAV, MP3, FLAC, Ogg or M4A"


def read_image(text: str, folder: str) -> Media:
    """Return the image for a URL, a data URL or a path. Raise ValueError with the reason if there is none."""
    if _is_web_url(text):
        return Media(text)
    if text[:5].lower() == "data:":
        return Media(text, _data_url_type(text))
    path, head = _open(text, folder)
    kind = _image_type(head)
    if kind is None:
        raise ValueError(f"'{text}' is not an image ({_IMAGE_FORMATS})")
    return Media("", kind, path)


def read_audio(text: str, folder: str) -> Media:
    """Return the audio for a URL, a data URL, `wav,<base64>` or a path, or raise ValueError with the reason."""
    if _is_web_url(text):
        return Media(text, _extension(text) or "wav")
    if text[:5].lower() == "data:":
        return _audio_data(text, text.partition(",")[2])
    start, comma, rest = text[:8].partition(",")
    if comma and start.lower() in ("wav", "mp3"):
        return _audio_data(f"{start},…", text[len(start) + 1 :] if rest else "")
    path, head = _open(text, folder)
    kind = _audio_type(head)
    if kind is None:
        raise ValueError(f"'{text}' is not audio ({_AUDIO_FORMATS})")
    return Media("", kind, path)


class MediaFiles:
    """Reads the files of turns, with a cache of the base64 text of the most recently used files."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._texts: dict[str, str] = {}
        """By path; the most recently used file is last."""
        self._size = 0

    def inlined(self, turn: Turn) -> Turn:
        """Return the turn with the content of its files instead of their paths."""
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
            text = _read_base64(path)
            self._size += len(text)
        self._texts[path] = text
        while self._size > self._max_bytes:
            self._size -= len(self._texts.pop(next(iter(self._texts))))
        return text


def _image_type(head: bytes) -> str | None:
    """Return the image type of a file with these first bytes, or None."""
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


def _audio_type(head: bytes) -> str | None:
    """Return the audio type of a file with these first bytes, or None."""
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
    """Return whether this is the header of an MPEG layer III frame with a valid bitrate and sample rate."""
    return second & 0xE0 == 0xE0 and second & 0x06 == 0x02 and third >> 4 not in (0, 15) and third & 0x0C != 0x0C


def _is_web_url(text: str) -> bool:
    return text[:7].lower() == "http://" or text[:8].lower() == "https://"


def _extension(url: str) -> str:
    return os.path.splitext(urlsplit(url).path)[1].removeprefix(".").lower()


def _data_url_type(text: str) -> str:
    """Return the type of the image in a data URL."""
    start, comma, data = text.partition(",")
    shown = start[:60] + ",…"
    if not comma or not start.lower().startswith("data:image/") or not start.lower().endswith(";base64"):
        raise ValueError(f"'{shown}' is not the data URL of an image, which begins with data:image/…;base64,")
    kind = _image_type(_first_bytes(data, shown))
    if kind is None:
        raise ValueError(f"the data URL '{shown}' does not hold an image ({_IMAGE_FORMATS})")
    return kind


def _audio_data(shown: str, data: str) -> Media:
    shown = shown.partition(",")[0][:60] + ",…"
    kind = _audio_type(_first_bytes(data, shown))
    if kind is None:
        raise ValueError(f"'{shown}' does not hold audio ({_AUDIO_FORMATS})")
    return Media(data, kind)


def _first_bytes(data: str, shown: str) -> bytes:
    """Return the first bytes of base64 data, after checking all of it: a server would refuse an error at the end."""
    try:
        b64decode(data, validate=True)
        return b64decode(data[: _HEAD // 3 * 4])
    except (NotBase64, ValueError):
        raise ValueError(f"'{shown}' is not followed by base64") from None


def _open(text: str, folder: str) -> tuple[str, bytes]:
    """Return the path and the first bytes of a file. Look in the working directory, then in `folder`."""
    if text[:7].lower() == "file://":
        text = unquote(urlsplit(text).path)
    path = os.path.expanduser(text)
    if not os.path.isabs(path) and not os.path.exists(path):
        in_folder = os.path.join(folder, path)
        path = in_folder if os.path.exists(in_folder) else path
    try:
        with open(path, "rb") as file:
            return os.path.abspath(path), file.read(_HEAD)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name has a null character in it"
        raise ValueError(f"'{text}' cannot be read: {reason}") from None


def _read_base64(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return b64encode(file.read()).decode()
    except OSError as error:
        raise UserError(
            f"The media file '{path}' cannot be read any more: {error.strerror}; keep it until the run ends."
        ) from None
