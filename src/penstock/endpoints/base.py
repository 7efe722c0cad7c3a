"""What an API dialect is: build(turn) -> body, read(reply) -> pieces.

A dialect knows nothing of sockets or clocks. What it finds in a reply it puts into a `Reply`; the caller (records.reader)
turns positions into times.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.reply import Reply
from penstock.settings.schema import EndpointSettings

__all__ = ["NO_HISTORY", "Endpoint", "History"]


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
