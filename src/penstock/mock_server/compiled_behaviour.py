"""A behaviour in nanoseconds, with the caches of the bytes that were rendered for it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.mock_server.behaviour import Behaviour, active_faults
from penstock.mock_server.http_format import EventFormat
from penstock.mock_server.write_steps import fault_applies

CACHED_BYTES = 64 << 20
CACHED_TEXTS = 128


class Delivery(NamedTuple):
    """How a response body ends, and whether the connection closes after it."""

    framing: Literal["chunked", "length", "eof"]
    close: bool


class CompiledBehaviour:
    def __init__(self, behaviour: Behaviour, cached_events: int = 4096) -> None:
        """`cached_events` of a text are cached; later ones are rendered when they are due."""
        self.behaviour = behaviour
        self.cached_events = cached_events
        self.ttft_ns = round(behaviour.ttft * 1e6)
        self.gap_ns = round(behaviour.itl * 1e6 * behaviour.chunk)
        self.jitter_ns = round(behaviour.jitter * 1e6)
        self.input_token_ns = behaviour.input_cost * 1e3
        self.faults = active_faults(behaviour)
        self.immediate = not (
            self.ttft_ns
            or self.gap_ns
            or self.jitter_ns
            or self.input_token_ns
            or self.faults
            or behaviour.separate
            or behaviour.comments
            or behaviour.split is not None
        )
        """Every reply is due at once, in a single write."""
        self._token_events: dict[tuple[object, ...], list[tuple[bytes, ...]]] = {}
        self._replies: dict[tuple[object, ...], list[bytes]] = {}
        self._reply_bytes = 0

    def faults_for(self, number: int, stream: bool) -> tuple[str, ...]:
        """Return the faults of request `number`, with at most one that replaces the whole reply."""
        seed = self.behaviour.seed
        names = [name for name, rate, fault in self.faults if fault_applies(seed, number, fault, rate)]
        for name in ("error", "empty", "html"):
            if name in names:
                return tuple(n for n in names if n in (name, "slow_head") or (n == "content_type" and name != "html"))
        return tuple(n for n in names if stream or n != "stream_error")

    def delivery(self, stream: bool, keep_alive: bool) -> Delivery:
        framing = self.behaviour.framing
        if framing == "auto":
            framing = "chunked" if stream else "length"
        return Delivery(framing, framing == "eof" or self.behaviour.close or not keep_alive)

    def event_format(self, delivery: Delivery) -> EventFormat:
        return EventFormat(delivery.framing == "chunked", self.behaviour.crlf, self.behaviour.event_lines)

    def cached_token_events(self, key: tuple[object, ...]) -> list[tuple[bytes, ...]]:
        """Return the list of rendered token events of one text, which the caller extends.

        Each entry is the bytes around the id, which goes between them.
        """
        events = self._token_events.get(key)
        if events is None:
            if len(self._token_events) >= CACHED_TEXTS:
                self._token_events.clear()
            events = self._token_events[key] = []
        return events

    def cached_reply(self, key: tuple[object, ...]) -> list[bytes] | None:
        """Return a reply without its token counts, as the bytes around the id."""
        return self._replies.get(key)

    def cache_reply(self, key: tuple[object, ...], parts: list[bytes]) -> None:
        size = sum(map(len, parts))
        if self._reply_bytes + size > CACHED_BYTES:
            self._replies.clear()
            self._reply_bytes = 0
        self._replies[key] = parts
        self._reply_bytes += size
