"""The `single_turn` format: a prompt a line; lines with the same session_id are sent in order, each by itself."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import Problems, empty_file, explain, numbered_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.turn_fields import CONTENT, TurnFields, turn_of, unused_note
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "read"]

_NAME = "single_turn"


class _Line(TurnFields):
    session_id: str | int | None = None
    type: Any = None  # said its say when the format was detected


_FIELDS = frozenset(_Line.__struct_fields__)


def _matches(first: dict[str, Any]) -> bool:
    if isinstance(first.get("messages"), list) or isinstance(first.get("turns"), list):
        return False
    # `text` can be an object in a request body of another dialect; any other wrong type is a mistake to be told.
    has_text = not isinstance(first.get("text"), dict | None) or first.get("texts") is not None
    return has_text or any(first.get(field) for field in CONTENT)


def read(path: str, settings: InputSettings) -> Contents:
    problems = Problems(path)
    decode = msgspec.json.Decoder(_Line).decode
    folder = os.path.dirname(path)
    sessions: dict[str | int, list[Turn]] = {}
    """Keyed by the session id, or by the line number where there is none, in order of first appearance."""
    unused: set[str] = set()
    empty = True
    for number, line in numbered_lines(path, problems):
        empty = False
        try:
            entry = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problems.add(number, explain(error, line))
            continue
        try:
            turn = turn_of(entry, folder)
        except ValueError as wrong:
            problems.add(number, str(wrong))
            continue
        session = number if entry.session_id in (None, "") else str(entry.session_id)
        sessions.setdefault(session, []).append(turn)
        if len(unused) < 100 and number <= 1000:
            unused.update(msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() - _FIELDS)
    problems.raise_any()
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
    needs="a JSON object a line, with 'text' or a list 'texts', 'image' or 'audio'",
    matches=_matches,
    read=read,
)
