"""An active conversation: its current turn, and the body of its next request."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.endpoints.base import Endpoint, History
from penstock.endpoints.reply import Reply
from penstock.records.payloads import PARTS, BodyParts, Payload, PayloadStore, PayloadWriter
from penstock.schedule.scheduler import ScheduledSession
from penstock.settings.schema import EndpointSettings
from penstock.trees import Node

_CACHE_BYTES = 4 << 20
_ENTRY_BYTES = 512  # memory of a cached entry besides its body


class Session(ScheduledSession):
    """An active conversation, with what its request bodies are built from."""

    parent_id: str | None = None
    """The correlation id of the conversation that has started this one."""

    def __init__(self, number: int, conversation: int, turns: range, server: int) -> None:
        # Without a call of the base class, which would take 0.3 µs of each request.
        self.number = number
        self.conversation = conversation
        self.turns = turns
        self.turn = 0
        self.server = server
        self.intended = 0
        self.prefilling = False
        self.phase = -1
        """Index of the phase that began it; -1 until its first turn is sent."""
        self.correlation_id = ""
        self.history: History | None = None
        self.parts: BodyParts | None = None
        """BodyParts of the turn in flight, if its body was built from parts."""

    def start_from(self, parent: ScheduledSession, node: Node) -> None:
        super().start_from(parent, node)
        assert isinstance(parent, Session)
        if node.parent >= 0:
            self.parent_id = parent.correlation_id
        if node.forked and parent.history is not None:
            self.history = msgspec.structs.replace(parent.history, items=parent.history.items.copy())


class Outgoing(NamedTuple):
    """A body to send, and the entry of the payload store that it comes from."""

    entry: Payload
    payload: int
    """Number of the entry."""
    body: bytes
    built: int | None
    """Number of the body among those that this worker has built; None if it was read from the store."""


class BodyBuilder:
    """Returns the body of each turn: read from the store, or built from the turn's parts and the earlier replies."""

    def __init__(
        self,
        folder: str,
        store: PayloadStore,
        endpoint: Endpoint,
        settings: EndpointSettings,
        worker: int,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._folder = folder
        self._store = store
        self._endpoint = endpoint
        self._settings = settings
        self._worker = worker
        self._writer: PayloadWriter | None = None
        self._cache: dict[int, Outgoing] = {}  # a small dataset is sent many times
        self._cache_bytes = self._cache_bytes_left = cache_bytes
        self.warmup = False
        """True during the warmup."""

    def use(self, store: PayloadStore) -> None:
        """Take bodies from another store."""
        self._store = store
        self._cache.clear()
        self._cache_bytes_left = self._cache_bytes

    def next(self, session: Session) -> Outgoing:
        payload = session.turns[session.turn]
        if (cached := self._cache.get(payload)) is not None:
            return cached
        entry = self._store.entry(payload)
        if entry.kind != PARTS:
            outgoing = Outgoing(entry, payload, self._store.read(entry), None)
            if entry.length + _ENTRY_BYTES <= self._cache_bytes_left:
                self._cache_bytes_left -= entry.length + _ENTRY_BYTES
                self._cache[payload] = outgoing
            return outgoing
        parts = session.parts = self._read_parts(session, entry)
        if session.history is None or parts.alone:
            session.history = History(parts.system, parts.context)
        body = self._endpoint.encode(self._endpoint.build(parts.turn, parts.model, self._settings, session.history))
        if self._writer is None:
            self._writer = PayloadWriter(self._folder, self._worker)
        built = self._writer.add_body(
            body, output_tokens=parts.turn.output_tokens, conversation=session.conversation, turn=session.turn
        )
        return Outgoing(entry, payload, body, built)

    def _read_parts(self, session: Session, entry: Payload) -> BodyParts:
        """Read the parts of a body and put the marker of its conversation into them."""
        parts = self._store.read_parts(entry)
        bust = parts.cache_bust
        if bust is not None and (session.turn == 0 or parts.alone):
            marker = bust.marker(session.phase, session.number, warmup=self.warmup)
            parts.system = bust.mark_system(parts.system, marker)
            parts.turn = bust.mark_turn(parts.turn, marker)
        return parts

    def waits_for_reply(self, session: Session) -> bool:
        """True if a body that follows the current turn contains its reply."""
        return session.tree is not None or self._store.entry(session.turns[session.turn + 1]).kind == PARTS

    def remember(self, session: Session, reply: Reply) -> None:
        """Add the reply to the history of the conversation."""
        if session.history is not None and session.parts is not None:
            self._endpoint.remember(session.history, session.parts.turn, reply, self._settings)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
