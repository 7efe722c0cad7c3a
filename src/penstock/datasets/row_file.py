"""Files with a request per row, of any size: traces, recorded bodies and prompts.

The beginning of a file is checked before the run: 5,000 rows or 1 MB, or all rows of a file up to 4 MB. The rest of a larger
file is read while the run sends if its order is that of the run: it has no sessions, and with a schedule the checked rows and
500 others in the rest of the file are in the order of their times. Of any other file all rows are read first: the offset, the
time and the conversation of each request are kept (24 bytes), and a row is read again when its request is written.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.jsonl import FileErrors, empty_file, explain, read_lines
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.schedule_part import SchedulePart
from penstock.datasets.source_files import source_files
from penstock.datasets.turn_fields import UnusedFields
from penstock.errors import UserError
from penstock.plural import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHECKED_ROWS = 5000
"""Rows of a large file that are checked before the run, in 0.1 s."""
_SAMPLES = 500
_ROWS_BETWEEN_PROGRESS = 1000
_NO_TIME = "it has no 'timestamp', which --fixed-schedule needs"


class Row(NamedTuple):
    turns: tuple[Turn, ...]
    session: str | None = None
    """Rows of a session are turns of one conversation."""
    complete: bool = False
    """True if the row has the whole prompt; otherwise earlier turns and their replies are sent before it."""
    request: int | str | None = None
    """The id of the request, for a format that names the earlier request instead of a session."""
    parent: int | str | None = None
    """The id of the request that this one follows."""


class RowFile(Dataset):
    """A file with a request, or several turns, in each row."""

    session_key = b""
    """A file without these bytes has no sessions."""
    reads_ahead = False
    """True if all rows are read before the run."""
    without_turns = 0
    """Rows that stand for no request."""
    unused: UnusedFields | None = None
    """Collects the fields of the checked rows that the format does not use."""

    def __init__(self, path: str, seed: int | None) -> None:
        self.files = source_files([path])
        self._path = path
        self._seed = seed
        self._size = self.files[0].identity.size
        self._part = SchedulePart()
        self._index: _Index | None = None
        """None if the rows are sent in the order of the file."""
        self._late = _LateRows()

    @abstractmethod
    def parse(self, line: bytes, offset: int) -> Row:
        """Return the row of a line at an offset; one without turns is left out. Raise ValueError or an error of msgspec."""

    def link(self, row: Row) -> Row:
        """Return a row with its session and requests, or raise ValueError. This is called in the order of the file."""
        return row

    def merge(self, name: str, rows: Sequence[Row]) -> Conversation:
        """Return the conversation of the rows of a session."""
        turns = rows[0].turns if len(rows) == 1 else tuple([turn for row in rows for turn in row.turns])
        return Conversation(id=name, turns=turns, accumulate=not rows[0].complete)

    def rows(self, errors: FileErrors) -> Iterator[tuple[int, int, Row]]:
        """Yield the line number, the offset and each row in the order of the file, without rows that have no turns."""
        self.without_turns = 0
        for number, offset, line in read_lines(self.files[0].path, errors):
            try:
                row = self.parse(line, offset)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                errors.add(number, explain(error, line))
            except ValueError as error:
                errors.add(number, str(error))
            else:
                if self.unused is not None:
                    self.unused.look_at(line)
                if row.turns:
                    yield number, offset, row
                else:
                    self.without_turns += 1

    def row_at(self, file: BinaryIO, offset: int) -> Row:
        """Return the row at an offset. Raise an exception if there is none."""
        file.seek(offset)
        line = file.readline()
        self.scanned += len(line)
        return self.parse(line, offset)

    def empty(self) -> UserError:
        return empty_file(self._path)

    def prepare(self, options: ReadOptions) -> None:
        self._part = SchedulePart(options.schedule)
        self._late = _LateRows()
        self.reads_on = self.verbatim or self._size > options.whole_bytes
        self._index = self._check(options)
        if self._index is not None:
            self.turns = self._index.arrange(self._part)
            self.accumulates = self._index.accumulates
        self.note = None if self.unused is None else self.unused.note()

    def _check(self, options: ReadOptions) -> _Index | None:
        """Check the first rows. Return None if the rest can be read in the order of the file, else the index of all rows."""
        errors = FileErrors(self._path)
        index = _Index()
        scheduled = options.schedule is not None
        is_small = self._size <= options.whole_bytes
        may_stream = not self.reads_ahead and not is_small and not self._has_sessions()
        for number, offset, found in self.rows(errors):
            try:
                row = self.link(found)
            except ValueError as error:
                errors.add(number, str(error))
                continue
            self.writes_prompts = self.writes_prompts or row.turns[0].prompt is not None
            if not index.add(offset, row) and scheduled:
                errors.add(number, _NO_TIME)
            may_stream = may_stream and not (scheduled and not index.sorted)
            if may_stream and (offset > options.whole_bytes / 4 or number > _CHECKED_ROWS):
                if not errors.count and (not scheduled or self._looks_sorted()):
                    return None
                may_stream = False
            if options.progress is not None and number % _ROWS_BETWEEN_PROGRESS == 0:
                options.progress(offset, self._size)
        errors.raise_any()
        if not index.count:
            raise self.empty()
        if options.progress is not None:
            options.progress(self._size, self._size)
        return index

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        self.scanned = 0
        rows = self._in_file_order(errors) if self._index is None else self._in_index_order(self._index)
        return self._part.select(rows, errors)

    def notes(self) -> list[str]:
        return [*self._part.notes(), *self._late.notes(os.path.basename(self._path))]

    def _in_file_order(self, errors: FileErrors) -> Iterator[Conversation]:
        ids = self._ids()
        scheduled = self._part.schedule is not None
        for number, offset, row in self.rows(errors):
            self.scanned = offset
            if scheduled:
                time = row.turns[0].timestamp_ms
                if time is None:
                    errors.add(number, _NO_TIME)
                    continue
                self._late.add(number, time)
            yield self.merge(row.session or next(ids), (row,))
        self.scanned = self._size

    def _in_index_order(self, index: _Index) -> Iterator[Conversation]:
        names = {group: name for name, group in index.group_of.items()}
        ids = self._ids(index.group_of)
        with open(self._path, "rb") as file:
            for group, offsets in index.conversations():
                rows = [self.row_at(file, offset) for offset in dict.fromkeys(offsets)]
                yield self.merge(names[group] if group in names else next(ids), rows)

    def _ids(self, taken: dict[str, int] | None = None) -> Iterator[str]:
        """Yield names for conversations without one. Recorded ones are named by their numbers in the payload store."""
        return iter(lambda: "", None) if self.verbatim else conversation_ids(self._seed, taken or ())

    def _has_sessions(self) -> bool:
        """Return whether rows may belong to sessions. This takes 0.1 s for 100 MB."""
        if not self.session_key or not self._size:
            return False
        with open(self._path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return content.find(self.session_key) >= 0

    def _looks_sorted(self) -> bool:
        """Return whether a sample of the rows is in the order of their times."""
        times: list[float] = []
        with open(self._path, "rb") as file:
            for number in range(_SAMPLES):
                file.seek(self._size * number // _SAMPLES)
                file.readline()
                # An error in a row is reported when the row is read in its turn.
                with contextlib.suppress(Exception):
                    time = self.row_at(file, file.tell()).turns[0].timestamp_ms
                    times += [] if time is None else [time]
        return times == sorted(times)


class _Index:
    """The requests of a file, in columns."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._times = array("d")
        """The time of each request, or NaN. A request without one has that of the previous request of its session."""
        self._groups = array("q")
        """The conversation of each request."""
        self._accumulate = array("b")
        """Whether each conversation is sent with its earlier turns."""
        self._last_times: dict[int, float] = {}
        self._members: NDArray[np.int64] | None = None
        """The requests of all conversations, one conversation after the other; None if each has one request."""
        self.accumulates = False
        """True if a conversation of several turns is sent with its earlier turns."""
        self.group_of: dict[str, int] = {}
        self.sorted = True
        self._latest = -math.inf

    @property
    def count(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, row: Row) -> bool:
        """Add the requests of a row. Return whether the time of each is known."""
        group = new = len(self._accumulate)
        if row.session is not None:
            group = self.group_of.setdefault(row.session, new)
        if group == new:
            self._accumulate.append(not row.complete)
        time = self._last_times.get(group, math.nan)
        known = True
        for turn in row.turns:
            time = time if turn.timestamp_ms is None else turn.timestamp_ms
            known = known and not math.isnan(time)
            self._offsets.append(offset)
            self._times.append(time)
            self._groups.append(group)
            self.sorted = self.sorted and time >= self._latest
            self._latest = time
        if row.session is not None:
            self._last_times[group] = time
        return known

    def arrange(self, part: SchedulePart) -> list[int]:
        """Select the conversations of the part of a schedule and order them by their times. Return the number of turns of
        each. Without a schedule, the order is that of the file."""
        import numpy as np

        times, groups = np.frombuffer(self._times, np.float64), np.frombuffer(self._groups, np.int64)
        order, is_inside = np.arange(len(groups)), np.ones(len(groups), bool)
        if part.schedule is not None:
            order = np.argsort(times, kind="stable")
            is_inside = (times >= part.first) & (times <= part.last)
        self._selected = order[is_inside[order]]
        if len(self._accumulate) == len(groups):  # each request is a conversation
            part.left_out += len(groups) - len(self._selected)
            return [1] * len(self._selected)
        found, first = np.unique(groups[self._selected], return_index=True)
        self._selected = found[np.argsort(first, kind="stable")]
        sizes = np.bincount(groups)
        self._members = order[np.argsort(groups[order], kind="stable")]
        self._begins = np.concatenate(([0], np.cumsum(sizes)))
        self.accumulates = bool(np.frombuffer(self._accumulate, bool)[sizes > 1].any())
        part.left_out += len(groups) - int(sizes[self._selected].sum())
        turns: list[int] = np.bincount(groups[is_inside], minlength=len(sizes))[self._selected].tolist()
        return turns

    def conversations(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the selected conversations with the offsets of their rows, in the order of their times."""
        for group in self._selected:
            if self._members is None:
                yield int(group), [self._offsets[group]]
            else:
                members = self._members[self._begins[group] : self._begins[group + 1]]
                yield int(group), [self._offsets[request] for request in members]


class _LateRows:
    """Counts rows with an earlier time than a row above them, in a file that counts as sorted."""

    def __init__(self) -> None:
        self._latest = -math.inf
        self._count = 0
        self._first = 0
        self._most_ms = 0.0

    def add(self, number: int, time: float) -> None:
        if time >= self._latest:
            self._latest = time
            return
        self._first = self._first or number
        self._count += 1
        self._most_ms = max(self._most_ms, self._latest - time)

    def notes(self, name: str) -> list[str]:
        if not self._count:
            return []
        rows = f"{counted(self._count, 'row')} from here on {'is' if self._count == 1 else 'are'}"
        delay = f"{self._most_ms / 1000:,.3f} s"
        return [
            f"{name}:{self._first}: {rows} earlier than a row above, by up to {delay}, and sent late; sort it by 'timestamp'."
        ]


def session_name(value: str | float | None) -> str | None:
    """Return the name of a session from its field; None if there is none."""
    return None if value in (None, "") else str(value)


def prompt(length: int, hash_ids: Sequence[int] | None, block_size: int) -> PromptShape:
    """Return the shape of a prompt, or raise ValueError with the reason."""
    shape = PromptShape(length, tuple(hash_ids or ()))
    needed = -(-shape.length // block_size)
    if len(shape.hash_ids) > needed:
        raise ValueError(
            f"'hash_ids' has {len(shape.hash_ids):,} blocks, but an 'input_length' of {shape.length:,} fills {needed:,} of "
            f"{block_size:,} tokens; check --isl-block-size"
        )
    return shape
