"""The `multi_turn` format: one conversation per line. Each turn is sent with the turns and replies before it.

    {"session_id": "s1", "turns": [{"role": "system", "text": "Be brief."}, {"text": "Hello"}, {"text": "And?", "delay": 500}]}

Lines with the same session_id are one conversation. A system turn at its beginning is sent with every turn.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import FileErrors, empty_file, explain, numbered_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.turn_fields import TurnFields, build_turn, unused_note
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "read"]

_NAME = "multi_turn"


class _Line(msgspec.Struct):
    turns: list[TurnFields]
    session_id: str | int | None = None
    type: Any = None  # used to detect the format


_FIELDS = frozenset(_Line.__struct_fields__)
_TURN_FIELDS = frozenset(TurnFields.__struct_fields__)


class _Keys(msgspec.Struct):
    turns: list[dict[str, msgspec.Raw]]


def _matches(first: dict[str, Any]) -> bool:
    turns = first.get("turns")
    return isinstance(turns, list) and bool(turns) and all(isinstance(turn, dict) for turn in turns)


def read(path: str, settings: InputSettings) -> Contents:
    errors = FileErrors(path)
    decode = msgspec.json.Decoder(_Line).decode
    folder = os.path.dirname(path)
    sessions: dict[str | int, list[Turn]] = {}
    """By session id, or by line number for a line without one, in order of first appearance."""
    first_lines: dict[str | int, int] = {}
    unused: set[str] = set()
    for number, line in numbered_lines(path, errors):
        try:
            entry = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            errors.add(number, explain(error, line))
            continue
        session = number if entry.session_id in (None, "") else str(entry.session_id)
        first_lines.setdefault(session, number)
        turns = sessions.setdefault(session, [])
        if not entry.turns:
            errors.add(number, "'turns' is empty")
        for position, fields in enumerate(entry.turns, 1):
            try:
                turns.append(build_turn(fields, folder))
            except ValueError as error:
                errors.add(number, f"turn {position}: {error}")
        if len(unused) < 100 and number <= 1000:
            unused |= _unused(line)
    if not first_lines and not errors.count:
        raise empty_file(path)
    for session, turns in sessions.items():
        if len(turns) == 1 and _is_system(turns[0]):
            errors.add(first_lines[session], "it has a system turn and no other")
    errors.raise_any()
    ids = conversation_ids(settings.seed, sessions)
    conversations = [
        _conversation(session if isinstance(session, str) else next(ids), turns) for session, turns in sessions.items()
    ]
    return Contents(conversations, unused_note(path, _NAME, unused, _FIELDS | _TURN_FIELDS))


def _conversation(name: str, turns: list[Turn]) -> Conversation:
    system = None
    if _is_system(turns[0]):
        system = "\n\n".join(turns[0].texts)
        turns = turns[1:]
    return Conversation(id=name, turns=tuple(turns), system=system, accumulate=True)


def _is_system(turn: Turn) -> bool:
    """Return whether a first turn is the system prompt: it has a text and no field of a request."""
    text_only = (
        not turn.images and not turn.audios and not turn.extra and not turn.delay_ms and turn.timestamp_ms is None
    )
    return turn.role == "system" and text_only and turn.output_tokens is None


def _unused(line: bytes) -> set[str]:
    unused = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() - _FIELDS
    for turn in msgspec.json.decode(line, type=_Keys).turns:
        unused |= turn.keys() - _TURN_FIELDS
    return set(unused)


FORMAT = Format(
    name=_NAME,
    needs="one JSON object per line, with a list 'turns' of objects like those of single_turn",
    matches=_matches,
    read=read,
)
