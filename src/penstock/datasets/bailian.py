"""The `bailian_trace` format: one request of a chat per line, with block hashes of 16 tokens.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.1, "input_length": 521, "output_length": 132, "hash_ids": [9]}

A request follows the one with the id `parent_chat_id` (-1: none). Such chains are conversations. Each request has its whole
prompt, so nothing is added to it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.format import Format
from penstock.datasets.row_file import Row, RowFile, prompt
from penstock.datasets.schedule_part import check_milliseconds
from penstock.settings.schema import InputSettings

_BLOCK_SIZE = 16

_Length = Annotated[int, msgspec.Meta(ge=1)]


class _Line(msgspec.Struct):
    chat_id: int | str
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Length
    output_length: _Length
    parent_chat_id: int | str = -1
    hash_ids: list[int] | None = None


_decode = msgspec.json.Decoder(_Line).decode


class BailianTrace(RowFile):
    """The requests of a trace of chats."""

    session_key = b'"parent_chat_id"'

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self.block_size = settings.block_size or _BLOCK_SIZE
        self._by_last_request: dict[int | str | None, str] = {}
        """The conversations by the id of their last request."""

    def parse(self, line: bytes, offset: int) -> Row:
        del offset
        fields = _decode(line)
        check_milliseconds(timestamp=fields.timestamp * 1000)
        turn = Turn(
            prompt=prompt(fields.input_length, fields.hash_ids, self.block_size),
            output_tokens=fields.output_length,
            timestamp_ms=fields.timestamp * 1000,
        )
        return Row(
            (turn,), f"chat_{fields.chat_id}", complete=True, request=fields.chat_id, parent=fields.parent_chat_id
        )

    def link(self, row: Row) -> Row:
        """Return a request with its conversation. A second reply to the same request begins a new one."""
        session = self._by_last_request.pop(row.parent, row.session or "")
        self._by_last_request[row.request] = session
        return row._replace(session=session)


def _matches(first: dict[str, Any]) -> bool:
    return {"chat_id", "timestamp", "input_length", "output_length"} <= first.keys()


FORMAT = Format(
    name="bailian_trace",
    needs="one object per line with 'chat_id', 'parent_chat_id', 'timestamp' in s, 'input_length' and 'output_length'",
    matches=_matches,
    read=BailianTrace,
    has_times=lambda _: True,
)
