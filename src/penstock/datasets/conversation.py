"""The content of requests: conversations of turns. The schedule decides when they are sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from penstock.trees import Tree


class BodyLocation(NamedTuple):
    """The location of a request body in one of the user's files."""

    file: int
    """Index into the dataset's files."""
    offset: int
    length: int
    padding: tuple[bytes, bytes] | None = None
    """White space to send before and after the body."""


class Media(msgspec.Struct, frozen=True):
    """An image or an audio clip."""

    data: str = ""
    """For an image its URL, which may be a data URL. For audio base64 or a URL."""
    format: str = ""
    """`png`, `jpeg`, `wav`, `mp3`, …"""
    path: str | None = None
    """The file that has the data. `datasets.media.files.MediaFiles` reads it when the body is built."""
    seconds: float | None = None
    """The length of an audio clip, if it is known."""


class PromptShape(msgspec.Struct, frozen=True):
    """A prompt of a trace that has no text."""

    length: int
    """In tokens."""
    hash_ids: tuple[int, ...] = ()
    """Each stands for a block of tokens, from the start of the prompt; equal ids stand for equal blocks."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    texts: tuple[str, ...] = ()
    text_names: tuple[str, ...] = ()
    """The name of each text in its file, such as `query`; empty if none has a name."""
    images: tuple[Media, ...] = ()
    audios: tuple[Media, ...] = ()
    messages: tuple[dict[str, Any], ...] = ()
    """Messages of the chat API that the turn adds to its conversation, instead of the texts and media."""
    role: str = "user"
    output_tokens: int | None = None
    """The reply length to ask for."""
    extra: dict[str, Any] = {}
    """Body fields of this turn; they override the extra inputs of the run."""
    input_tokens: int | None = None
    """The number of tokens of the texts joined by spaces, if known."""
    delay_ms: float = 0.0
    timestamp_ms: float | None = None
    prompt: PromptShape | None = None
    """Replaces the texts until `datasets.trace_prompts` has written them."""
    body: BodyLocation | None = None
    """The body to send as it is; None if the body is built from the other fields."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """If it is empty, the conversation is named by its number in the payload store."""
    turns: tuple[Turn, ...]
    system: str | None = None
    """System text that is sent with every turn."""
    context: str | None = None
    """A user message before the first turn."""
    accumulate: bool = False
    """True if each turn is sent with the turns and replies before it."""
    tree: Tree | None = None
    """The conversations that this one starts. Its turns are those of the whole tree."""
