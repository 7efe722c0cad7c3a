"""Rows of traces from which requests are built: their checks, and how they become conversations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.format import Contents
from penstock.datasets.jsonl import FileErrors, empty_file, explain, numbered_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.settings.schema import InputSettings

__all__ = ["TraceRow", "check_milliseconds", "conversations", "prompt", "read_trace"]

_T = TypeVar("_T")


class TraceRow(NamedTuple):
    turn: Turn
    session: str | None = None
    """Rows of a session are turns of one conversation."""
    complete: bool = False
    """True if the row has the whole prompt; otherwise earlier turns and their replies are sent before it."""


def read_trace(
    path: str, settings: InputSettings, block_size: int, decode: Callable[[bytes], _T], row: Callable[[_T], TraceRow]
) -> Contents:
    """Read a trace with an object per line. `row` returns the row of an object, or raises ValueError with the reason."""
    errors = FileErrors(path)
    rows: list[TraceRow] = []
    for number, line in numbered_lines(path, errors):
        try:
            rows.append(row(decode(line)))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            errors.add(number, explain(error, line))
        except ValueError as error:
            errors.add(number, str(error))
    if not rows and not errors.count:
        raise empty_file(path)
    errors.raise_any()
    return Contents(conversations(rows, settings.seed), block_size=block_size)


def conversations(rows: Iterable[TraceRow], seed: int | None) -> list[Conversation]:
    """Return the conversations of the rows in order of their first rows."""
    sessions: dict[str | int, list[TraceRow]] = {}
    for number, row in enumerate(rows):
        sessions.setdefault(number if row.session is None else row.session, []).append(row)
    ids = conversation_ids(seed, sessions)
    return [
        Conversation(
            id=name if isinstance(name, str) else next(ids),
            turns=tuple([row.turn for row in members]),
            accumulate=not members[0].complete,
        )
        for name, members in sessions.items()
    ]


def prompt(length: int, hash_ids: Iterable[int] | None, block_size: int) -> PromptShape:
    """Return the shape of a prompt, or raise ValueError with the reason."""
    shape = PromptShape(length, tuple(hash_ids or ()))
    needed = -(-shape.length // block_size)
    if len(shape.hash_ids) > needed:
        raise ValueError(
            f"'hash_ids' has {len(shape.hash_ids):,} blocks, but an 'input_length' of {shape.length:,} fills {needed:,} of "
            f"{block_size:,} tokens; check --isl-block-size"
        )
    return shape


def check_milliseconds(**fields: Any) -> None:
    """Raise ValueError for a time that is negative or not finite."""
    for name, value in fields.items():
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"'{name}' should be a number of milliseconds, 0 or more")
