"""What a dialect finds in a reply: pieces of text, what the server counted, and what went wrong and whose fault it was.

`Failure` and `Usage` go into the record as they are.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["ErrorOwner", "Failure", "Reply", "Usage"]

ErrorOwner = Literal["server", "network", "penstock", "user"]


class Failure(msgspec.Struct, array_like=True, frozen=True):
    type: str
    """A short name for grouping: `Internal Server Error`, `ErrorObject`, `Timeout`, `ConnectionRefused`, …"""
    message: str
    owner: ErrorOwner
    code: int | None = None
    """The HTTP status, when there was one that explains the failure."""


class Usage(msgspec.Struct, array_like=True, frozen=True):
    """What the server says it counted; a field it did not send is None."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    prompt_audio: int | None = None
    completion_audio: int | None = None
    accepted_prediction: int | None = None
    rejected_prediction: int | None = None


class Reply:
    """What a dialect found in a reply. In a stream the lists `texts`, `ends` and `reasoning` are parallel: one entry for
    each piece of content, in order."""

    __slots__ = (
        "content",
        "done",
        "ends",
        "failure",
        "finish",
        "id",
        "items",
        "model",
        "outputs",
        "reasoning",
        "reasonings",
        "texts",
        "usage",
        "vectors",
        "warnings",
    )

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ends: list[int] = []
        """Offset in the body behind the event that carried the piece: when that byte was there, the piece was. Empty
        when the caller said that it needs none."""
        self.reasoning: list[bool] | None = None
        """Whether each content is reasoning; None when none is."""
        self.outputs: list[str] = []
        """The text of each choice; tool calls and refusals count as text."""
        self.reasonings: list[str] = []
        self.finish: list[str] = []
        self.usage: Usage | None = None
        self.model: str | None = None
        self.id: str | None = None
        self.items: list[Any] = []
        """Structured output (tool calls, output items) for the history of a conversation."""
        self.content = ""
        """What a choice of chat completions says beside its tool calls: `outputs` holds both, which a history would
        repeat. Empty when it calls no tools."""
        self.vectors = 0
        """Embeddings or ranked items, which are content without text."""
        self.warnings: dict[str, int] = {}
        """Oddities that fail nothing but belong in the report, with their counts."""
        self.failure: Failure | None = None
        self.done = False
        """The reply said that it was complete: a finish reason or an end mark."""
