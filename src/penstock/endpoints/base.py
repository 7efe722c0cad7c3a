"""What an API dialect is: build(turn) -> body, read(reply) -> pieces.

A dialect knows nothing of sockets or clocks. `Reply` is where a dialect puts what it finds in a reply; the caller
(records.reader) turns positions into times.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.datasets.conversation import Turn
from penstock.records.record import Failure, Usage
from penstock.settings.model import EndpointSettings

__all__ = ["Endpoint", "History", "Reply"]


class Reply:
    """What a dialect found in a reply. In a stream the lists `texts`, `ends` and `reasoning` are parallel: one entry for
    each piece of content, in order."""

    __slots__ = (
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
        self.vectors = 0
        """Embeddings or ranked items, which are content without text."""
        self.warnings: dict[str, int] = {}
        """Oddities that fail nothing but belong in the report, with their counts."""
        self.failure: Failure | None = None
        self.done = False
        """The reply said that it was complete: a finish reason or an end mark."""


class History(msgspec.Struct):
    """What a turn must know of its conversation. The items are the dialect's own: it alone reads and writes them."""

    system: str | None = None
    context: str | None = None
    items: list[Any] = msgspec.field(default_factory=list)
    """Earlier turns and their replies, in order, in the form in which the dialect sends them."""
    previous_id: str | None = None
    """The server's id of the last reply, when the server keeps the history."""


NO_HISTORY = History()


class Endpoint(Protocol):
    name: str
    path: str
    """Appended to the base URL unless the user gives another."""
    streams: bool
    """It can stream at all."""

    def build(
        self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY
    ) -> dict[str, Any]:
        """The request body for one turn."""
        ...

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add a turn and its reply to the history."""
        ...

    def input_text(self, body: dict[str, Any]) -> list[str]:
        """The texts in a body that count as input tokens."""
        ...

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        """Read the server-sent events of a whole body; `timed` asks for the offsets of the pieces."""
        ...

    def read_body(self, body: bytes) -> Reply:
        """Read a whole body."""
        ...
