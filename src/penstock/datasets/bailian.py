"""The `bailian_trace` format: one request of a chat per line, with block hashes of 16 tokens.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.1, "input_length": 521, "output_length": 132, "hash_ids": [9]}

A request follows the one with the id `parent_chat_id` (-1: none). Such chains are conversations. Each request has its whole
prompt, so nothing is added to it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.format import Contents, Format
from penstock.datasets.trace_rows import TraceRow, prompt, read_trace
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT"]

_BLOCK_SIZE = 16

_Length = Annotated[int, msgspec.Meta(ge=1)]


class _Line(msgspec.Struct):
    chat_id: int | str
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Length
    output_length: _Length
    parent_chat_id: int | str = -1
    hash_ids: list[int] | None = None


class _Chains:
    """The conversations of the requests so far."""

    def __init__(self) -> None:
        self._by_last_request: dict[int | str, str] = {}

    def add(self, line: _Line) -> str:
        """Return the conversation of a request. A second reply to the same request begins a new one."""
        session = self._by_last_request.pop(line.parent_chat_id, f"chat_{line.chat_id}")
        self._by_last_request[line.chat_id] = session
        return session


def _read(path: str, settings: InputSettings) -> Contents:
    block_size = settings.block_size or _BLOCK_SIZE
    chains = _Chains()

    def row(fields: _Line) -> TraceRow:
        shape = prompt(fields.input_length, fields.hash_ids, block_size)
        turn = Turn(prompt=shape, output_tokens=fields.output_length, timestamp_ms=fields.timestamp * 1000)
        return TraceRow(turn, complete=True)

    def link(fields: _Line, row: TraceRow) -> TraceRow:
        return row._replace(session=chains.add(fields))

    decode = msgspec.json.Decoder(_Line).decode
    return read_trace(path, settings, block_size, decode, row, link, session_key=b'"parent_chat_id"')


def _matches(first: dict[str, Any]) -> bool:
    return {"chat_id", "timestamp", "input_length", "output_length"} <= first.keys()


FORMAT = Format(
    name="bailian_trace",
    needs="one object per line with 'chat_id', 'parent_chat_id', 'timestamp' in s, 'input_length' and 'output_length'",
    matches=_matches,
    read=_read,
    has_times=lambda _: True,
)
