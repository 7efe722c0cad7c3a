"""The interface of an endpoint, which builds the request bodies of one API and parses its replies.

An endpoint does not use sockets or clocks. It parses a reply into a `Reply`; `records.interpret` converts its offsets
into times.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import orjson

from penstock.datasets.conversation import Turn
from penstock.endpoints.json_replies import unexpected_stream
from penstock.endpoints.reply import Reply
from penstock.settings.endpoint_types import DEFAULT, Declaration, load_endpoint
from penstock.settings.schema import EndpointSettings

__all__ = ["NO_HISTORY", "Body", "Declaration", "Endpoint", "History", "endpoint_named"]


Body = dict[str, Any]
"""A request body before it is encoded."""


class History(msgspec.Struct):
    """The conversation so far, as the next turn needs it. Only the endpoint reads and writes `items`."""

    system: str | None = None
    context: str | None = None
    items: list[Any] = msgspec.field(default_factory=list)
    """Earlier turns and their replies, in order, as the endpoint sends them."""
    previous_id: str | None = None
    """The server's id of the last reply, if the server stores the history."""


NO_HISTORY = History()


class Endpoint(Protocol):
    """An API. Derive from this class, and declare what differs from the defaults of `Declaration`."""

    name: str
    path: str = ""
    """Appended to the base URL unless the user gives another path. If it is empty, the URL is complete."""
    declaration: Declaration = DEFAULT

    def request_path(self, settings: EndpointSettings) -> str:
        """Return the path of requests: the user's, or that of the declaration for streams, or the usual one."""
        return settings.path or (self.declaration.stream_path if settings.streaming else "") or self.path

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        """Return the request body of a turn."""
        ...

    def encode(self, body: Body) -> bytes:
        """Return a body as it is sent, in the declared content type."""
        return orjson.dumps(body)

    def decode(self, body: bytes) -> Any:
        """Return a sent body as `build` returned it, or raise ValueError."""
        return msgspec.json.decode(body)

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add a turn and its reply to the history. By default do nothing: requests contain no earlier turns."""
        del history, turn, reply, settings

    def input_text(self, body: Body) -> list[str]:
        """Return the texts of a body that count as input tokens."""
        ...

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        """Parse a body of server-sent events; `timed` asks for the offsets of the pieces. By default the API has no streams."""
        del timed
        return unexpected_stream(body)

    def read_body(self, body: bytes) -> Reply:
        """Parse an unstreamed body."""
        ...


def endpoint_named(name: str, settings: EndpointSettings | None = None) -> Endpoint:
    """Return a new endpoint. If it has a method `configure`, call it with the settings, if there are any."""
    loaded: Endpoint = load_endpoint(name)
    configure = getattr(loaded, "configure", None)
    if configure is not None and settings is not None:
        configure(settings)
    return loaded
