"""The `multi_turn` format: one conversation per line. Each turn is sent with the turns and replies before it.

    {"session_id": "s1", "turns": [{"role": "system", "text": "Be brief."}, {"text": "Hello"}, {"text": "And?", "delay": 500}]}

Lines with the same session_id are one conversation. A system turn at its beginning is sent with every turn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Format
from penstock.datasets.row_file import Row, RowFile, session_name
from penstock.datasets.turn_fields import TurnFields, UnusedFields, build_turn
from penstock.settings.schema import InputSettings

_NAME = "multi_turn"


class _Line(msgspec.Struct):
    turns: list[TurnFields]
    session_id: str | int | None = None
    type: Any = None  # used to detect the format


_FIELDS = frozenset(_Line.__struct_fields__)
_TURN_FIELDS = frozenset(TurnFields.__struct_fields__)
_decode = msgspec.json.Decoder(_Line).decode


def _matches(first: dict[str, Any]) -> bool:
    turns = first.get("turns")
    return isinstance(turns, list) and bool(turns) and all(isinstance(turn, dict) for turn in turns)


class MultiTurn(RowFile):
    """The conversations of a file."""

    reads_ahead = True

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self._folder = os.path.dirname(path)
        self.unused = UnusedFields(path, _NAME, _FIELDS, _TURN_FIELDS)
        self._sessions: set[str] = set()

    def parse(self, line: bytes, offset: int) -> Row:
        del offset
        fields = _decode(line)
        if not fields.turns:
            raise ValueError("'turns' is empty")
        turns: list[Turn] = []
        for turn in fields.turns:
            try:
                turns.append(build_turn(turn, self._folder))
            except ValueError as error:
                raise ValueError(f"turn {len(turns) + 1}: {error}") from None
        return Row(tuple(turns), session_name(fields.session_id))

    def link(self, row: Row) -> Row:
        """Return a row without the system prompt of its conversation, which is no request."""
        if row.session in self._sessions:
            return row
        if row.session is not None:
            self._sessions.add(row.session)
        if not _is_system(row.turns[0]):
            return row
        if len(row.turns) == 1:
            raise ValueError("it has a system turn and no other")
        return row._replace(turns=row.turns[1:])

    def merge(self, name: str, rows: Sequence[Row]) -> Conversation:
        merged = super().merge(name, rows)
        first, *others = merged.turns
        if not _is_system(first):
            return merged
        return msgspec.structs.replace(merged, turns=tuple(others), system="\n\n".join(first.texts))


def _is_system(turn: Turn) -> bool:
    """Return whether a first turn is the system prompt: it has a text and no field of a request."""
    text_only = (
        not turn.images and not turn.audios and not turn.extra and not turn.delay_ms and turn.timestamp_ms is None
    )
    return turn.role == "system" and text_only and turn.output_tokens is None


FORMAT = Format(
    name=_NAME,
    needs="one JSON object per line, with a list 'turns' of objects like those of single_turn",
    matches=_matches,
    read=MultiTurn,
)
