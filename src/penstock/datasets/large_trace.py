"""Traces with so many rows that requests are sent while prompts are still written.

The rows of the first 1 MB are checked before the run. If they are in the order of their times and the trace has no sessions,
and so are 500 rows in the rest of the file, the trace counts as sorted: its rows are read while the run sends. Otherwise all
rows are read first. The offset, the time and the conversation of each are kept (33 bytes), and it is read again when its
prompt is written.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.random_streams import conversation_ids
from penstock.datasets.recording import SourceFile, source_files
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.schema import ScheduleSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CHECKED", "LARGE", "LargeTrace", "LateRows", "RowAt", "Rows", "TraceRow", "file_contains", "looks_sorted"]

LARGE = 4 << 20
"""Bytes. All rows of smaller files are kept in memory: about 40,000."""
CHECKED = 1 << 20
"""Bytes whose rows are checked before the first request of a sorted trace: about 10,000 rows, in 0.1 s."""
_SAMPLES = 500
_ROWS_BETWEEN_PROGRESS = 10_000

Progress = Callable[[int, int], None]


class TraceRow(NamedTuple):
    turn: Turn
    session: str | None = None
    """Rows of a session are turns of one conversation."""
    complete: bool = False
    """True if the row has the whole prompt; otherwise earlier turns and their replies are sent before it."""


class RowAt(NamedTuple):
    number: int
    """The number of its line."""
    offset: int
    row: TraceRow


class Rows(Protocol):
    """The rows of a file."""

    def read(self, errors: FileErrors, *, linked: bool = True) -> Iterator[RowAt]:
        """Yield the rows in the order of the file. Rows that are not linked may lack their sessions."""
        ...

    def read_at(self, file: BinaryIO, offset: int) -> TraceRow:
        """Return the row at an offset, without its session. Raise an exception if there is none."""
        ...

    def has_sessions(self) -> bool:
        """Return whether rows may belong to sessions, without reading them."""
        ...

    def empty(self) -> UserError:
        """Return the error of a file without rows."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the user about the rows that were read."""
        ...


class LargeTrace:
    """A trace whose conversations are made while they are needed. `prepare` is called first."""

    def __init__(self, path: str, rows: Rows, seed: int | None) -> None:
        self.files: list[SourceFile] = source_files([path])
        self.size = self.files[0].identity.size
        self._path = path
        self._rows = rows
        self._seed = seed
        self._index: _Index | None = None
        self._late = LateRows()

    def prepare(self, *, scheduled: bool, progress: Progress | None = None) -> None:
        """Check the first rows, or read all rows if that is necessary. Raise UserError for errors in them.

        `scheduled`: conversations are needed in the order of their times.
        """
        errors = FileErrors(self._path)
        index = _Index()
        may_stream = not self._rows.has_sessions()
        for number, offset, row in self._rows.read(errors):
            index.add(offset, row)
            if scheduled and not index.sorted:
                may_stream = False
            elif may_stream and offset > CHECKED and not errors.count:
                if not scheduled or looks_sorted(self._path, self.size, self._time_at):
                    return
                may_stream = False
            if progress is not None and number % _ROWS_BETWEEN_PROGRESS == 0:
                progress(offset, self.size)
        errors.raise_any()
        if not len(index.offsets):
            raise self._rows.empty()
        if progress is not None:
            progress(self.size, self.size)
        self._index = index

    def _time_at(self, file: BinaryIO, offset: int) -> float | None:
        return self._rows.read_at(file, offset).turn.timestamp_ms

    @property
    def turns(self) -> list[int]:
        """The number of turns of each conversation; empty if not all rows have been read."""
        return [] if self._index is None else self._index.turns()

    @property
    def accumulates(self) -> bool:
        """True if a conversation of several turns is sent with its earlier turns."""
        return self._index is not None and self._index.accumulates()

    def first_turn(self) -> Turn:
        return next(self._rows.read(FileErrors(self._path), linked=False)).row.turn

    def conversations(self, errors: FileErrors, schedule: ScheduleSettings | None) -> Iterator[Conversation]:
        """Yield the conversations of the requested part of the schedule, in its order, with times from its start."""
        part = _Part(schedule)
        if self._index is None:
            yield from self._in_file_order(errors, part)
        else:
            yield from self._in_index_order(self._index, part)

    def notes(self) -> list[str]:
        return [*self._rows.notes(), *self._late.notes(os.path.basename(self._path))]

    def _in_file_order(self, errors: FileErrors, part: _Part) -> Iterator[Conversation]:
        ids = conversation_ids(self._seed)
        for number, _, row in self._rows.read(errors, linked=False):
            time = row.turn.timestamp_ms
            if part.schedule is not None:
                if time is None:
                    errors.add(number, "it has no 'timestamp', which --fixed-schedule needs")
                    continue
                self._late.add(number, time)
                if not part.has(time):
                    continue
            yield Conversation(id=next(ids), turns=(part.shifted(row.turn),), accumulate=not row.complete)

    def _in_index_order(self, index: _Index, part: _Part) -> Iterator[Conversation]:
        ids = conversation_ids(self._seed, index.group_of)
        names = {group: name for name, group in index.group_of.items()}
        with open(self._path, "rb", buffering=1 << 16) as file:
            for group, members in index.ordered(part):
                rows = [self._rows.read_at(file, offset) for offset in members]
                yield Conversation(
                    id=names[group] if group in names else next(ids),
                    turns=tuple([part.shifted(row.turn) for row in rows]),
                    accumulate=not rows[0].complete,
                )


def looks_sorted(path: str, size: int, time_at: Callable[[BinaryIO, int], float | None]) -> bool:
    """Return whether a sample of the rows is in the order of their times. `time_at` returns the time of a row at an offset."""
    times: list[float] = []
    with open(path, "rb") as file:
        for number in range(_SAMPLES):
            file.seek(size * number // _SAMPLES)
            file.readline()
            # An error in a row is reported when the row is read in its turn.
            with contextlib.suppress(Exception):
                time = time_at(file, file.tell())
                times += [] if time is None else [time]
    return times == sorted(times)


def file_contains(path: str, key: bytes) -> bool:
    """Return whether the bytes are in the file. This takes 0.1 s for 100 MB."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        return content.find(key) >= 0


class _Part:
    """The requested part of a schedule."""

    def __init__(self, schedule: ScheduleSettings | None) -> None:
        self.schedule = schedule
        self._first, self._last, self._zero, self._speedup = -math.inf, math.inf, 0.0, 1.0
        self._needs_zero = False
        if schedule is not None:
            self._first = schedule.start_ms or 0.0
            self._last = math.inf if schedule.end_ms is None else schedule.end_ms
            self._zero = schedule.start_ms or 0.0
            self._needs_zero = schedule.start_ms is None and schedule.auto_offset
            self._speedup = schedule.speedup

    def has(self, time: float) -> bool:
        return self._first <= time <= self._last

    def select(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the positions of the times within the part, in their order. Without a schedule, return all."""
        import numpy as np

        if self.schedule is None:
            return np.arange(len(times))
        if np.isnan(times).any():
            raise UserError(
                "--fixed-schedule sends at recorded times, and this dataset has conversations without a 'timestamp'."
            )
        kept = np.flatnonzero((times >= self._first) & (times <= self._last))
        if not len(kept):
            raise UserError("No conversation lies between the start and the end of the schedule that were given.")
        return kept[np.argsort(times[kept], kind="stable")]

    def shifted(self, turn: Turn) -> Turn:
        """Return a turn with its time from the start of the schedule."""
        time = turn.timestamp_ms
        if self.schedule is None or (time is None and not turn.delay_ms):
            return turn
        if self._needs_zero and time is not None:
            self._zero, self._needs_zero = time, False
        return msgspec.structs.replace(
            turn, timestamp_ms=None if time is None else time - self._zero, delay_ms=turn.delay_ms / self._speedup
        )


class _Index:
    """The rows of a trace, in columns."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self._groups = array("q")
        self._first_times = array("d")
        """The time of the first row of each group, or NaN."""
        self._accumulate = array("b")
        """Whether each group is sent with its earlier turns."""
        self.group_of: dict[str, int] = {}
        self.sorted = True
        self._latest = -math.inf

    def add(self, offset: int, row: TraceRow) -> None:
        group = new = len(self._first_times)
        if row.session is not None:
            group = self.group_of.setdefault(row.session, new)
        self.offsets.append(offset)
        self._groups.append(group)
        if group == new:
            time = row.turn.timestamp_ms
            self._first_times.append(math.nan if time is None else time)
            self._accumulate.append(not row.complete)
            if time is not None:
                self.sorted = self.sorted and time >= self._latest
                self._latest = time

    def turns(self) -> list[int]:
        import numpy as np

        counts: list[int] = np.bincount(np.frombuffer(self._groups, np.int64)).tolist()
        return counts

    def accumulates(self) -> bool:
        return any(turns > 1 and accumulate for turns, accumulate in zip(self.turns(), self._accumulate, strict=True))

    def ordered(self, part: _Part) -> Iterator[tuple[int, list[int]]]:
        """Yield the groups of the part in the order of their times, each with the offsets of its rows."""
        import numpy as np

        groups = np.frombuffer(self._groups, np.int64)
        rows = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups))
        for group in part.select(np.frombuffer(self._first_times, np.float64)):
            first = ends[group - 1] if group else 0
            yield int(group), [self.offsets[row] for row in rows[first : ends[group]]]


class LateRows:
    """Counts rows with an earlier time than a row above them, in a trace that counts as sorted."""

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
