"""The `single_turn` format: one prompt per line.

Lines with the same session_id are sent in order, each without the others.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.datasets.format import Format
from penstock.datasets.row_file import Row, RowFile, session_name
from penstock.datasets.turn_fields import CONTENT, TurnFields, UnusedFields, build_turn
from penstock.settings.schema import InputSettings

_NAME = "single_turn"


class _Line(TurnFields):
    session_id: str | int | None = None
    type: Any = None  # used to detect the format


_FIELDS = frozenset(_Line.__struct_fields__)
_decode = msgspec.json.Decoder(_Line).decode


def _matches(first: dict[str, Any]) -> bool:
    if isinstance(first.get("messages"), list) or isinstance(first.get("turns"), list):
        return False
    # `text` is an object in the request bodies of some APIs; any other wrong type is an error in this format.
    has_text = not isinstance(first.get("text"), dict | None) or first.get("texts") is not None
    return has_text or any(first.get(field) for field in CONTENT)


class SingleTurn(RowFile):
    """The prompts of a file."""

    session_key = b'"session_id"'

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self._folder = os.path.dirname(path)
        self.unused = UnusedFields(path, _NAME, _FIELDS)

    def parse(self, line: bytes, offset: int) -> Row:
        del offset
        fields = _decode(line)
        turn = build_turn(fields, self._folder)
        return Row((turn,), session_name(fields.session_id), complete=True)


FORMAT = Format(
    name=_NAME,
    needs="one JSON object per line, with 'text' or a list 'texts', 'image' or 'audio'",
    matches=_matches,
    read=SingleTurn,
)
