"""A conversation under way: which turn it is at, and what its next body is."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from penstock.endpoints.base import Endpoint, History
from penstock.endpoints.reply import Reply
from penstock.records.payloads import PARTS, BodyParts, Payload, PayloadStore, PayloadWriter
from penstock.settings.schema import EndpointSettings

__all__ = ["BodyBuilder", "Outgoing", "Session"]

_KEEP_BYTES = 4 << 20
_ENTRY_BYTES = 512  # what one that is kept costs besides its body


class Session:
    __slots__ = ("conversation", "correlation_id", "history", "number", "parts", "turn", "turns", "url")

    def __init__(self, number: int, conversation: int, turns: range, url: int, correlation_id: str) -> None:
        self.number = number
        self.conversation = conversation
        self.turns = turns
        self.turn = 0
        self.url = url
        self.correlation_id = correlation_id
        self.history: History | None = None
        self.parts: BodyParts | None = None
        """Of the turn in flight, when its body was built here."""

    @property
    def has_next(self) -> bool:
        return self.turn + 1 < len(self.turns)


class Outgoing(NamedTuple):
    entry: Payload
    payload: int
    body: bytes
    built: int | None


class BodyBuilder:
    """Gives each turn its body: read from the store, or built from its parts and the replies before it."""

    def __init__(
        self, folder: str, store: PayloadStore, endpoint: Endpoint, settings: EndpointSettings, worker: int
    ) -> None:
        self._folder = folder
        self._store = store
        self._endpoint = endpoint
        self._settings = settings
        self._worker = worker
        self._own: PayloadWriter | None = None
        self._kept: dict[int, Outgoing] = {}  # a small dataset is sent over and over
        self._room = _KEEP_BYTES

    def next(self, session: Session) -> Outgoing:
        payload = session.turns[session.turn]
        if (known := self._kept.get(payload)) is not None:
            return known
        entry = self._store.entry(payload)
        if entry.kind != PARTS:
            found = Outgoing(entry, payload, self._store.read(entry), None)
            if entry.length + _ENTRY_BYTES <= self._room:
                self._room -= entry.length + _ENTRY_BYTES
                self._kept[payload] = found
            return found
        parts = session.parts = self._store.read_parts(entry)
        if session.history is None:
            session.history = History(parts.system, parts.context)
        body = orjson.dumps(self._endpoint.build(parts.turn, parts.model, self._settings, session.history))
        if self._own is None:
            self._own = PayloadWriter(self._folder, self._worker)
        built = self._own.add_body(
            body, output_tokens=parts.turn.output_tokens, conversation=session.conversation, turn=session.turn
        )
        return Outgoing(entry, payload, body, built)

    def waits_for_reply(self, session: Session) -> bool:
        """The next turn cannot be built before the reply to this one has been read."""
        return self._store.entry(session.turns[session.turn + 1]).kind == PARTS

    def remember(self, session: Session, reply: Reply) -> None:
        if session.history is not None and session.parts is not None:
            self._endpoint.remember(session.history, session.parts.turn, reply, self._settings)

    def following(self, session: Session) -> Payload:
        """What is known of the next turn."""
        return self._store.entry(session.turns[session.turn + 1])

    def flush(self) -> None:
        if self._own is not None:
            self._own.flush()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
