"""Rows of traces from which requests are built: their checks, and how they become conversations."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from penstock.datasets.conversation import Conversation, PromptShape
from penstock.datasets.format import Contents
from penstock.datasets.jsonl import FileErrors, empty_file, explain, open_failure
from penstock.datasets.large_trace import LARGE, LargeTrace, RowAt, Rows, TraceRow, file_contains
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.raw_payload import Lines
from penstock.datasets.recording import source_files
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, SynthesisSettings

__all__ = ["TraceRow", "check_milliseconds", "contents_of", "conversations", "prompt", "read_trace"]

_T = TypeVar("_T")


def read_trace(
    path: str,
    settings: InputSettings,
    block_size: int,
    decode: Callable[[bytes], _T],
    row: Callable[[_T], TraceRow],
    link: Callable[[_T, TraceRow], TraceRow],
    *,
    session_key: bytes,
) -> Contents:
    """Read a trace with an object per line. `row` returns the row of an object, or raises ValueError with the reason.

    `link` is called with each row in the order of the file and returns it with its session. A file without the bytes
    `session_key` has no sessions.
    """
    rows = JsonRows(path, decode, row, link, session_key)
    return contents_of(path, rows, settings, block_size)


class JsonRows(Generic[_T]):
    """The rows of a trace with an object per line."""

    def __init__(
        self,
        path: str,
        decode: Callable[[bytes], _T],
        row: Callable[[_T], TraceRow],
        link: Callable[[_T, TraceRow], TraceRow],
        session_key: bytes,
    ) -> None:
        self._decode = decode
        self._row = row
        self._link = link
        self._path = path
        self._session_key = session_key

    def read(self, errors: FileErrors, *, linked: bool = True) -> Iterator[RowAt]:
        for number, offset, line in Lines(source_files([self._path])).read(0, errors):
            try:
                fields = self._decode(line)
                row = self._row(fields)
                row = self._link(fields, row) if linked else row
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                errors.add(number, explain(error, line))
            except ValueError as error:
                errors.add(number, str(error))
            else:
                yield RowAt(number, offset, row)

    def read_at(self, file: BinaryIO, offset: int) -> TraceRow:
        file.seek(offset)
        return self._row(self._decode(file.readline()))

    def has_sessions(self) -> bool:
        return file_contains(self._path, self._session_key)

    def empty(self) -> UserError:
        return empty_file(self._path)

    def notes(self) -> list[str]:
        return []


def contents_of(path: str, rows: Rows, settings: InputSettings, block_size: int) -> Contents:
    """Return the contents of a trace. The rows of a large file are read when they are needed."""
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise open_failure(path, error) from None
    if size > LARGE and settings.synthesis == SynthesisSettings():
        return Contents([], large_trace=LargeTrace(path, rows, settings.seed), block_size=block_size)
    errors = FileErrors(path)
    found = [at.row for at in rows.read(errors)]
    errors.raise_any()
    if not found:
        raise rows.empty()
    return Contents(conversations(found, settings.seed), " ".join(rows.notes()) or None, block_size=block_size)


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
