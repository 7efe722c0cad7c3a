"""A parsed reply: pieces of text, the server's token counts, and the failure with its owner.

`Failure` and `Usage` become part of the record.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ErrorOwner = Literal["server", "network", "penstock", "user"]


class Failure(msgspec.Struct, array_like=True, frozen=True):
    type: str
    """A short name by which failures are grouped: `Internal Server Error`, `ErrorObject`, `Timeout`, `ConnectionRefused`, …"""
    message: str
    owner: ErrorOwner
    code: int | None = None
    """The HTTP status, if it explains the failure."""


class Usage(msgspec.Struct, array_like=True, frozen=True):
    """The server's token counts; a count that it did not send is None."""

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
    """A parsed reply. For a stream, `texts`, `ends` and `reasoning` have one entry for each piece of content, in order."""

    def __init__(self, failure: Failure | None = None) -> None:
        self.texts: list[str] = []
        self.ends: list[int] = []
        """End offset in the body of the event with the piece: the piece arrives with this byte. Only valid if the caller
        asked for it (`timed`)."""
        self.reasoning: list[bool] | None = None
        """Whether each piece is reasoning; None if none is."""
        self.outputs: list[str] = []
        """The text of each choice, with its tool calls and refusals."""
        self.reasonings: list[str] = []
        self.finish: list[str] = []
        self.usage: Usage | None = None
        self.usage_by_piece: dict[int, int] = {}
        """Completion tokens up to each chunk that has content and usage, by the number of pieces up to then."""
        self.model: str | None = None
        self.id: str | None = None
        self.items: list[Any] = []
        """Structured output (tool calls, output items) for the next request of a conversation."""
        self.content = ""
        """The text of a chat completion without its tool calls, which `outputs` contains too. Empty without tool calls."""
        self.vectors = 0
        """The number of results without text, which are content too: embeddings, ranked items, images, empty transcripts."""
        self.images = 0
        """The number of images in the reply."""
        self.warnings: dict[str, int] = {}
        """Unusual properties that are no failure but belong in the report, with their counts."""
        self.failure = failure
        self.done = False
        """Whether the reply has a finish reason or an end mark."""
