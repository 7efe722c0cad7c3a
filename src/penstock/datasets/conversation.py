"""What to say, and nothing about when."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Conversation", "Media", "Turn"]


class Media(msgspec.Struct, frozen=True):
    """An image or a sound, as an API takes it."""

    data: str = ""
    """Of an image: its URL, which may be a data URL. Of a sound: base64, or a URL."""
    format: str = ""
    """`png`, `jpeg`, `wav`, `mp3`, …"""
    path: str | None = None
    """It still lies in this file: `datasets.media.files.MediaFiles` reads it when the body is made."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    texts: tuple[str, ...] = ()
    images: tuple[Media, ...] = ()
    audios: tuple[Media, ...] = ()
    role: str = "user"
    output_tokens: int | None = None
    """The reply length to ask for."""
    extra: dict[str, Any] = {}
    """Body fields of this turn alone; they win over the run's extra inputs."""
    input_tokens: int | None = None
    """How many tokens the texts, joined by a space, have, when the maker of the turn knows it."""
    delay_ms: float = 0.0
    timestamp_ms: float | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    turns: tuple[Turn, ...]
    system: str | None = None
    """System text that goes with every turn."""
    context: str | None = None
    """A user message before the first turn."""
    accumulate: bool = False
    """Each turn carries the turns and replies before it; otherwise each is complete in itself."""
