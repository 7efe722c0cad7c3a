"""What a turn looks like in a file: the fields that single_turn and multi_turn share, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Media, Turn
from penstock.datasets.media.files import audio_of, image_of
from penstock.suggest import nearest

__all__ = ["CONTENT", "TurnFields", "turn_of", "unused_note"]

CONTENT = ("image", "images", "audio", "audios", "video", "videos", "image_uuids")
"""Fields that, beside the texts, tell that an object is a turn."""
_UNSENT = ("video", "videos", "image_uuids")


class Named(msgspec.Struct):
    contents: list[str]
    name: str | None = None


Contents = list[str | Named]


class TurnFields(msgspec.Struct):
    text: str | None = None
    texts: Contents | None = None
    image: str | None = None
    images: Contents | None = None
    audio: str | None = None
    audios: Contents | None = None
    role: str | None = None
    output_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    extra: dict[str, Any] | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None
    video: Any = None
    videos: Any = None
    image_uuids: Any = None


def turn_of(fields: TurnFields, folder: str) -> Turn:
    """A ValueError says what is wrong. Media are looked for beside the file, in `folder`."""
    for field in _UNSENT:
        if getattr(fields, field):
            raise ValueError(f"it has '{field}', and this version sends text, images and audio only")
    for one, many in (("text", "texts"), ("image", "images"), ("audio", "audios")):
        if getattr(fields, one) is not None and getattr(fields, many) is not None:
            raise ValueError(f"it has both '{one}' and '{many}'; keep one")
    if fields.timestamp is not None and fields.delay is not None:
        raise ValueError("it has both 'timestamp' and 'delay'; keep one")
    if fields.role == "":
        raise ValueError("'role' is empty")
    texts = _listed(fields.text or None, fields.texts)
    images = _media(_listed(fields.image, fields.images), "image", image_of, folder)
    audios = _media(_listed(fields.audio, fields.audios), "audio", audio_of, folder)
    if not any(texts) and not images and not audios:
        raise ValueError("it has no content: give it 'text', 'image' or 'audio'")
    return Turn(
        texts=texts,
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


def _listed(one: str | None, many: Contents | None) -> tuple[str, ...]:
    if many is None:
        return () if one is None else (one,)
    found: list[str] = []
    for item in many:
        found.extend((item,) if isinstance(item, str) else item.contents)
    return tuple(found)


def unused_note(path: str, name: str, unused: set[str], known: frozenset[str]) -> str | None:
    """A sentence about fields that the format does not know."""
    if not unused:
        return None
    shown = ", ".join(_with_guess(field, known) for field in sorted(unused)[:5]) + (", …" if len(unused) > 5 else "")
    return f"{path}: the format {name} does not use {shown}."


def _with_guess(field: str, known: frozenset[str]) -> str:
    guess = nearest(field.lower().replace("-", "_"), known, 0.8)
    return f"'{field}' (did you mean '{guess}'?)" if guess else f"'{field}'"
