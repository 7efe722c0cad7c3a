"""Recorded traffic: rows `{"timestamp": ms, "session_id"?: …, "payload": {…}}`, each payload sent byte for byte.

This is the payload form of `mooncake_trace`. Rows of one session are its turns, wherever they stand, and a schedule wants the
conversations in the order of time. So all rows are read before the first is sent; 48 bytes of each are kept meanwhile.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import address, replace_lone_surrogates
from penstock.datasets.jsonl import Problems, explain
from penstock.datasets.raw_payload import Lines
from penstock.datasets.recording import BodyLocation, Recorded, RecordingOptions, SourceFile, source_files
from penstock.settings.schema import InputSettings, ScheduleSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FORMAT", "Trace", "first_row_is_timed"]

_NAME = "mooncake_trace"
_OTHER_FORMS = ("messages", "text_input", "input_length")
_PAYLOAD = re.compile(rb'"payload"[ \t\r\n]*:[ \t\r\n]*')
_LONGEST_FIRST_LINE = 64 << 20


class _Line(msgspec.Struct):
    payload: msgspec.Raw
    timestamp: float | None = None
    delay: float | None = None
    session_id: str | int | float | None = None


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder(_Line).decode


class _Row(NamedTuple):
    begin: int
    end: int
    time: float | None
    delay: float | None
    session: str | None


class _Fault(Exception):
    """What is wrong with a row."""


class Trace:
    needs_whole = True

    def __init__(self, path: str) -> None:
        self.files: list[SourceFile] = source_files([path])
        self._lines = Lines(self.files)
        self._dropped = 0

    @property
    def scanned(self) -> int:
        return self._lines.scanned

    def notes(self) -> list[str]:
        return [f"{self._dropped:,} row(s) lie outside of the part of the schedule that was asked for."] * (
            self._dropped > 0
        )

    def scan(self, wish: RecordingOptions, problems: Problems) -> Iterator[Recorded]:
        rows = _Rows()
        for number, offset, line in self._lines.of(0, problems):
            try:
                begins = rows.add(offset, _row(line))
            except _Fault as fault:
                problems.add(number, str(fault))
                continue
            if begins and wish.schedule is not None and math.isnan(rows.times[-1]):
                problems.add(number, "it has no 'timestamp', which --fixed-schedule needs")
        if not self._lines.seen:
            problems.add(1, "the file is empty: each line should be an object with a 'payload'")
        if problems.count:
            return
        import numpy as np

        kept, zero, faster = np.arange(len(rows.times)), 0.0, 1.0
        if wish.schedule is not None:
            kept, zero = _scheduled(np.frombuffer(rows.when, np.float64), wish.schedule)
            faster = wish.schedule.speedup
            self._dropped = len(rows.times) - len(kept)
        if not len(kept):
            problems.add(1, "no row lies in the part of the schedule that was asked for")
        yield from rows.conversations(kept, zero, faster / wish.delay_ratio if wish.delay_ratio else math.inf)


def _scheduled(when: NDArray[np.float64], schedule: ScheduleSettings) -> tuple[NDArray[np.int64], float]:
    """Which rows take part, in the order of time, and what time counts as the start."""
    first = -math.inf if schedule.start_ms is None else schedule.start_ms
    last = math.inf if schedule.end_ms is None else schedule.end_ms
    import numpy as np

    kept = np.flatnonzero((when >= first) & (when <= last))
    kept = kept[np.argsort(when[kept], kind="stable")]
    if schedule.start_ms is not None:
        return kept, schedule.start_ms
    return kept, float(when[kept[0]]) if schedule.auto_offset and len(kept) else 0.0


class _Rows:
    def __init__(self) -> None:
        self._offsets = array("Q")
        self._lengths = array("Q")
        self.times = array("d")
        """NaN for a row without one."""
        self.when = array("d")
        """The same, but a row without one has that of the row of its session before it."""
        self._delays = array("d")
        self._groups = array("q")
        self._group_of: dict[str, int] = {}
        self._latest: dict[int, float] = {}
        self._count = 0

    def add(self, offset: int, row: _Row) -> bool:
        """Whether this row begins a conversation."""
        group = self._count
        if row.session is not None:
            group = self._group_of.setdefault(row.session, group)
        begins = group == self._count
        self._count += begins
        time = math.nan if row.time is None else row.time
        self._offsets.append(offset + row.begin)
        self._lengths.append(row.end - row.begin)
        self.times.append(time)
        self.when.append(self._latest.get(group, math.nan) if row.time is None else time)
        self._delays.append(row.delay or 0.0)
        self._groups.append(group)
        if row.session is not None:
            self._latest[group] = self.when[-1]
        return begins

    def conversations(self, kept: NDArray[np.int64], zero: float, faster: float) -> Iterator[Recorded]:
        """The rows of `kept`, in that order, put together by session."""
        names = {group: name for name, group in self._group_of.items()}
        import numpy as np

        groups = np.frombuffer(self._groups, np.int64)[kept]
        _, first, counts = np.unique(groups, return_index=True, return_counts=True)
        ends = np.cumsum(counts)
        together = kept[np.argsort(groups, kind="stable")]
        for i in np.argsort(first, kind="stable"):
            numbers = together[ends[i] - counts[i] : ends[i]].tolist()
            yield Recorded(names.get(self._groups[numbers[0]]), [self._place(n, zero, faster) for n in numbers])

    def _place(self, number: int, zero: float, faster: float) -> BodyLocation:
        time = self.times[number]
        return BodyLocation(
            0,
            self._offsets[number],
            self._lengths[number],
            None if math.isnan(time) else time - zero,
            self._delays[number] / faster,
        )


def _row(line: bytes) -> _Row:
    try:
        found = _decode(line)
    except msgspec.ValidationError as error:
        raise _Fault(_type_error(error, line)) from None
    except RecursionError as error:
        raise _Fault(explain(error, line)) from None
    except msgspec.DecodeError as error:
        text = replace_lone_surrogates(line)
        if text == line:
            raise _Fault(explain(error, line)) from None
        return _row(text)
    payload = memoryview(found.payload)
    if bytes(payload[:1]) != b"{":
        raise _Fault("'payload' should be a request body, a JSON object")
    guess = _PAYLOAD.search(line)
    begin = guess.end() if guess is not None else 0
    if not line.startswith(bytes(payload), begin):  # the key stands in some text before it, too
        begin = address(payload) - address(line)
    session = None if found.session_id in (None, "") else str(found.session_id)
    return _checked(_Row(begin, begin + len(payload), found.timestamp, found.delay, session))


def _type_error(error: msgspec.ValidationError, line: bytes) -> str:
    members = _decode_members(line) if line.lstrip().startswith(b"{") else {}
    if not members or "payload" in members:
        return explain(error, line)
    if form := next((form for form in _OTHER_FORMS if form in members), None):
        hint = "; for lines that are request bodies say --custom-dataset-type raw_payload" * (form == "messages")
        return f"it has '{form}' and no 'payload'; of {_NAME} this version reads rows with a 'payload'{hint}"
    return "it has no 'payload', the request body to send"


def _checked(row: _Row) -> _Row:
    for name, value in (("timestamp", row.time), ("delay", row.delay)):
        if value is not None and not 0 <= value < math.inf:
            raise _Fault(f"'{name}' should be a number of milliseconds, 0 or more")
    return row


def first_row_is_timed(path: str) -> bool:
    """Whether a trace says when it was recorded. Anything wrong with the file is for the scan to say."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.strip():
                    first = msgspec.json.decode(line[:_LONGEST_FIRST_LINE], type=dict[str, msgspec.Raw])
                    return "timestamp" in first
    except (OSError, msgspec.MsgspecError, RecursionError):
        pass
    return False


def _matches(first: dict[str, Any]) -> bool:
    """Also the other forms of the format: the scan says that they are not read."""
    return bool({"payload", *_OTHER_FORMS} & first.keys())


def _read(path: str, _settings: InputSettings) -> Contents:
    return Contents([], recording=Trace(os.fspath(path)))


FORMAT = Format(
    name=_NAME,
    needs="recorded requests: an object a line with 'payload' and, for a schedule, 'timestamp' in milliseconds",
    matches=_matches,
    read=_read,
)
