"""A behaviour in the units of the server, with what was rendered for it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.mock.behaviour import Behaviour, active_faults
from penstock.mock.http_format import Format
from penstock.mock.write_steps import strikes

__all__ = ["CompiledBehaviour", "Delivery"]

CACHED_BYTES = 64 << 20
CACHED_TEXTS = 128


class Delivery(NamedTuple):
    """How the end of a body is told, and what becomes of the connection."""

    how: Literal["chunked", "length", "eof"]
    close: bool


class CompiledBehaviour:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.ttft = round(behaviour.ttft * 1e6)
        self.gap = round(behaviour.itl * 1e6 * behaviour.chunk)
        self.jitter = round(behaviour.jitter * 1e6)
        self.input_cost = behaviour.input_cost * 1e3
        self.faults = active_faults(behaviour)
        self.plain = not (
            self.ttft
            or self.gap
            or self.jitter
            or self.input_cost
            or self.faults
            or behaviour.separate
            or behaviour.comments
            or behaviour.split is not None
        )
        """Every reply is one block that is due at once."""
        self.pieces: dict[tuple[object, ...], list[tuple[bytes, ...]]] = {}
        """Pieces of a text, each split where the id belongs."""
        self.blocks: dict[tuple[object, ...], list[bytes]] = {}
        """Whole replies without their end, split in the same way."""
        self._block_bytes = 0

    def struck(self, number: int, stream: bool) -> tuple[str, ...]:
        """The faults that strike this request; of those that replace the whole reply, one."""
        seed = self.behaviour.seed
        hit = [name for name, rate, fault in self.faults if strikes(seed, number, fault, rate)]
        for name in ("error", "empty", "html"):
            if name in hit:
                return tuple(n for n in hit if n in (name, "slow_head") or (n == "content_type" and name != "html"))
        return tuple(n for n in hit if stream or n != "stream_error")

    def delivery(self, stream: bool, keep: bool) -> Delivery:
        how = self.behaviour.framing
        if how == "auto":
            how = "chunked" if stream else "length"
        return Delivery(how, how == "eof" or self.behaviour.close or not keep)

    def form(self, delivery: Delivery) -> Format:
        return Format(delivery.how == "chunked", self.behaviour.crlf, self.behaviour.event_lines)

    def kept_pieces(self, key: tuple[object, ...]) -> list[tuple[bytes, ...]]:
        kept = self.pieces.get(key)
        if kept is None:
            if len(self.pieces) >= CACHED_TEXTS:
                self.pieces.clear()
            kept = self.pieces[key] = []
        return kept

    def keep_block(self, key: tuple[object, ...], block: list[bytes]) -> None:
        size = sum(map(len, block))
        if self._block_bytes + size > CACHED_BYTES:
            self.blocks.clear()
            self._block_bytes = 0
        self.blocks[key] = block
        self._block_bytes += size
