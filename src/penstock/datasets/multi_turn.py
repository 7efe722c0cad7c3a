"""The `multi_turn` format: a conversation a line; each turn is sent with those before it and the server's replies.

    {"session_id": "s1", "turns": [{"role": "system", "text": "Be brief."}, {"text": "Hello"}, {"text": "And?", "delay": 500}]}

Lines with the same session_id are one conversation. A system turn at its beginning goes with every turn, where the
endpoint type has a place for it.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import Problems, empty_file, explain, numbered_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.turn_fields import TurnFields, turn_of, unused_note
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "read"]

_NAME = "multi_turn"


class _Line(msgspec.Struct):
    turns: list[TurnFields]
    session_id: str | int | None = None
    type: Any = None  # said its say when the format was detected


_FIELDS = frozenset(_Line.__struct_fields__)
_TURN_FIELDS = frozenset(TurnFields.__struct_fields__)


class _Keys(msgspec.Struct):
    turns: list[dict[str, msgspec.Raw]]


def _matches(first: dict[str, Any]) -> bool:
    turns = first.get("turns")
    return isinstance(turns, list) and bool(turns) and all(isinstance(turn, dict) for turn in turns)


def read(path: str, settings: InputSettings) -> Contents:
    problems = Problems(path)
    decode = msgspec.json.Decoder(_Line).decode
    folder = os.path.dirname(path)
    sessions: dict[str | int, list[Turn]] = {}
    """Keyed by the session id, or by the line number where there is none, in order of first appearance."""
    begins: dict[str | int, int] = {}
    unused: set[str] = set()
    for number, line in numbered_lines(path, problems):
        try:
            entry = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problems.add(number, explain(error, line))
            continue
        session = number if entry.session_id in (None, "") else str(entry.session_id)
        begins.setdefault(session, number)
        turns = sessions.setdefault(session, [])
        if not entry.turns:
            problems.add(number, "'turns' is empty")
        for place, fields in enumerate(entry.turns, 1):
            try:
                turns.append(turn_of(fields, folder))
            except ValueError as wrong:
                problems.add(number, f"turn {place}: {wrong}")
        if len(unused) < 100 and number <= 1000:
            unused |= _unused(line)
    if not begins and not problems.count:
        raise empty_file(path)
    for session, turns in sessions.items():
        if len(turns) == 1 and _is_system(turns[0]):
            problems.add(begins[session], "it has a system turn and no other")
    problems.raise_any()
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
    """Text for every turn: it has nothing that would make it a request of its own."""
    bare = not turn.images and not turn.audios and not turn.extra and not turn.delay_ms and turn.timestamp_ms is None
    return turn.role == "system" and bare and turn.output_tokens is None


def _unused(line: bytes) -> set[str]:
    found = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() - _FIELDS
    for turn in msgspec.json.decode(line, type=_Keys).turns:
        found |= turn.keys() - _TURN_FIELDS
    return set(found)


FORMAT = Format(
    name=_NAME,
    needs="a JSON object a line, with a list 'turns' of objects like those of single_turn",
    matches=_matches,
    read=read,
)
