"""The fields of a turn in the formats single_turn and multi_turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Media, Turn
from penstock.datasets.media.files import read_audio, read_image
from penstock.datasets.schedule_part import check_milliseconds
from penstock.suggest import nearest

CONTENT = ("image", "images", "audio", "audios", "video", "videos", "image_uuids")
"""Fields of a turn other than texts; any of them shows that an object is a turn."""
_UNSUPPORTED = ("video", "videos", "image_uuids")


class _NamedContents(msgspec.Struct):
    contents: list[str]
    name: str | None = None


_Contents = list[str | _NamedContents]


class TurnFields(msgspec.Struct):
    text: str | None = None
    texts: _Contents | None = None
    image: str | None = None
    images: _Contents | None = None
    audio: str | None = None
    audios: _Contents | None = None
    role: str | None = None
    output_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    extra: dict[str, Any] | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None
    video: Any = None
    videos: Any = None
    image_uuids: Any = None


def build_turn(fields: TurnFields, folder: str) -> Turn:
    """Build a turn, or raise ValueError with the reason. Paths of media may be relative to `folder`."""
    for field in _UNSUPPORTED:
        if getattr(fields, field):
            raise ValueError(f"it has '{field}', and this version sends text, images and audio only")
    for single, several in (("text", "texts"), ("image", "images"), ("audio", "audios")):
        if getattr(fields, single) is not None and getattr(fields, several) is not None:
            raise ValueError(f"it has both '{single}' and '{several}'; keep one")
    if fields.timestamp is not None and fields.delay is not None:
        raise ValueError("it has both 'timestamp' and 'delay'; keep one")
    check_milliseconds(timestamp=fields.timestamp, delay=fields.delay)
    if fields.role == "":
        raise ValueError("'role' is empty")
    texts = _as_tuple(fields.text or None, fields.texts)
    images = _media(_as_tuple(fields.image, fields.images), "image", read_image, folder)
    audios = _media(_as_tuple(fields.audio, fields.audios), "audio", read_audio, folder)
    if not any(texts) and not images and not audios:
        raise ValueError("it has no content: give it 'text', 'image' or 'audio'")
    return Turn(
        texts=texts,
        text_names=_names(fields.texts),
        images=images,
        audios=audios,
        role=fields.role or "user",
        output_tokens=fields.output_length,
        extra=fields.extra or {},
        delay_ms=fields.delay or 0.0,
        timestamp_ms=fields.timestamp,
    )


def _media(texts: tuple[str, ...], field: str, read: Callable[[str, str], Media], folder: str) -> tuple[Media, ...]:
    if not all(texts):
        raise ValueError(f"'{field}' is empty")
    return tuple([read(text, folder) for text in texts])


def _as_tuple(single: str | None, several: _Contents | None) -> tuple[str, ...]:
    if several is None:
        return () if single is None else (single,)
    contents: list[str] = []
    for item in several:
        contents.extend((item,) if isinstance(item, str) else item.contents)
    return tuple(contents)


def _names(several: _Contents | None) -> tuple[str, ...]:
    """Return the name of each text, or nothing if none has one."""
    if not several or not any(isinstance(item, _NamedContents) and item.name for item in several):
        return ()
    names: list[str] = []
    for item in several:
        names += [""] if isinstance(item, str) else [item.name or ""] * len(item.contents)
    return tuple(names)


class UnusedFields:
    """Collects the fields that a format does not use, from the first 1,000 lines of a file."""

    def __init__(self, path: str, format_: str, known: frozenset[str], of_turns: frozenset[str] = frozenset()) -> None:
        """`of_turns` are the known fields of the objects in a list `turns`."""
        self._path = path
        self._format = format_
        self._known = known
        self._of_turns = of_turns
        self._unused: set[str] = set()
        self._lines = 0

    def look_at(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > 1000 or len(self._unused) >= 100:
            return
        members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        self._unused |= members.keys() - self._known
        if self._of_turns:
            for turn in msgspec.json.decode(members["turns"], type=list[dict[str, msgspec.Raw]]):
                self._unused |= turn.keys() - self._of_turns

    def note(self) -> str | None:
        """Return a sentence about the fields, or None if there are none."""
        if not self._unused:
            return None
        known = self._known | self._of_turns
        shown = ", ".join(_with_suggestion(field, known) for field in sorted(self._unused)[:5])
        more = ", …" if len(self._unused) > 5 else ""
        return f"{self._path}: the format {self._format} does not use {shown}{more}."


def _with_suggestion(field: str, known: frozenset[str]) -> str:
    guess = nearest(field.lower().replace("-", "_"), known, 0.8)
    return f"'{field}' (did you mean '{guess}'?)" if guess else f"'{field}'"
