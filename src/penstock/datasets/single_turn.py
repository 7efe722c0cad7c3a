"""The `single_turn` format: one prompt per line.

Lines with the same session_id are sent in order, each without the others.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import FileErrors, empty_file, explain, numbered_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.turn_fields import CONTENT, TurnFields, build_turn, unused_note
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "read"]

_NAME = "single_turn"


class _Line(TurnFields):
    session_id: str | int | None = None
    type: Any = None  # used to detect the format


_FIELDS = frozenset(_Line.__struct_fields__)


def _matches(first: dict[str, Any]) -> bool:
    if isinstance(first.get("messages"), list) or isinstance(first.get("turns"), list):
        return False
    # `text` is an object in the request bodies of some APIs; any other wrong type is an error in this format.
    has_text = not isinstance(first.get("text"), dict | None) or first.get("texts") is not None
    return has_text or any(first.get(field) for field in CONTENT)


def read(path: str, settings: InputSettings) -> Contents:
    errors = FileErrors(path)
    decode = msgspec.json.Decoder(_Line).decode
    folder = os.path.dirname(path)
    sessions: dict[str | int, list[Turn]] = {}
    """By session id, or by line number for a line without one, in order of first appearance."""
    unused: set[str] = set()
    empty = True
    for number, line in numbered_lines(path, errors):
        empty = False
        try:
            entry = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            errors.add(number, explain(error, line))
            continue
        try:
            turn = build_turn(entry, folder)
        except ValueError as error:
            errors.add(number, str(error))
            continue
        session = number if entry.session_id in (None, "") else str(entry.session_id)
        sessions.setdefault(session, []).append(turn)
        if len(unused) < 100 and number <= 1000:
            unused.update(msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() - _FIELDS)
    errors.raise_any()
    if empty:
        raise empty_file(path)
    ids = conversation_ids(settings.seed, sessions)
    conversations = [
        Conversation(id=session if isinstance(session, str) else next(ids), turns=tuple(turns))
        for session, turns in sessions.items()
    ]
    return Contents(conversations, unused_note(path, _NAME, unused, _FIELDS))


FORMAT = Format(
    name=_NAME,
    needs="one JSON object per line, with 'text' or a list 'texts', 'image' or 'audio'",
    matches=_matches,
    read=read,
)
