"""The `mooncake_trace` format, and its rows with payloads: `{"timestamp": ms, "session_id"?: …, "payload": {…}}`.

Each payload is sent byte for byte. The rows of a session are its turns and may be anywhere in the file, and a schedule
needs the conversations in the order of their times. So all rows are read before the first is sent, and 48 bytes of each
are kept. Only a large file that has no sessions and looks sorted (see `large_trace`) is read while it is sent.
`mooncake_rows` reads traces whose first row has no payload.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import address, replace_lone_surrogates
from penstock.datasets.jsonl import BOM, FileErrors, explain
from penstock.datasets.large_trace import CHECKED, LARGE, LateRows, file_contains, looks_sorted
from penstock.datasets.mooncake_rows import FORMS, read_rows
from penstock.datasets.raw_payload import Lines
from penstock.datasets.recording import BodyLocation, RecordedConversation, RecordingOptions, SourceFile, source_files
from penstock.plural import counted
from penstock.settings.schema import InputSettings, ScheduleSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FORMAT", "Trace", "first_row_is_timed"]

_NAME = "mooncake_trace"
_PAYLOAD = re.compile(rb'"payload"[ \t\r\n]*:[ \t\r\n]*')
_TRIED_LINES = 100
"""Lines that are tried to find a row that can be read. The scan reports the others."""
_ROWS_BETWEEN_PROGRESS = 10_000
_NO_TIME = "it has no 'timestamp', which --fixed-schedule needs"


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


class _RowError(Exception):
    """A row cannot be replayed; the message is the reason."""


class Trace:
    """The recording in a trace."""

    def __init__(self, path: str) -> None:
        self.files: list[SourceFile] = source_files([path])
        self._lines = Lines(self.files)
        self._dropped = 0
        self._late = LateRows()

    @property
    def scanned(self) -> int:
        return self._lines.scanned

    def notes(self) -> list[str]:
        dropped = f"Left out: {counted(self._dropped, 'row')} outside of the requested part of the schedule."
        return [*([dropped] if self._dropped else []), *self._late.notes(os.path.basename(self.files[0].path))]

    def scan(self, options: RecordingOptions, errors: FileErrors) -> Iterator[RecordedConversation]:
        path, size = self.files[0].path, self.files[0].identity.size
        may_stream = size > LARGE and not file_contains(path, b'"session_id"')
        latest = -math.inf
        rows = _Rows()
        tell = options.on_progress or (lambda: None)
        for number, offset, line in self._lines.read(0, errors):
            if number % _ROWS_BETWEEN_PROGRESS == 0:
                tell()
            try:
                is_first = rows.add(offset, _read_row(line))
            except _RowError as error:
                errors.add(number, str(error))
                continue
            if is_first and options.schedule is not None and math.isnan(rows.times[-1]):
                errors.add(number, _NO_TIME)
            if options.schedule is not None:
                may_stream = may_stream and rows.times[-1] >= latest
                latest = rows.times[-1]
            if may_stream and offset > CHECKED and not errors.count:
                may_stream = options.schedule is None or looks_sorted(path, size, _time_at)
                if may_stream:
                    yield from self._in_file_order(options, errors)
                    return
        if not self._lines.seen:
            errors.add(1, "the file is empty: each line should be an object with a 'payload'")
        if errors.count:
            return
        import numpy as np

        kept, zero, speedup = np.arange(len(rows.times)), 0.0, 1.0
        if options.schedule is not None:
            kept, zero = _select_rows(np.frombuffer(rows.effective_times, np.float64), options.schedule)
            speedup = options.schedule.speedup
            self._dropped = len(rows.times) - len(kept)
        if not len(kept):
            errors.add(1, "no row lies between --fixed-schedule-start-offset and --fixed-schedule-end-offset")
        yield from rows.conversations(kept, zero, speedup / options.delay_ratio if options.delay_ratio else math.inf)

    def _in_file_order(self, options: RecordingOptions, errors: FileErrors) -> Iterator[RecordedConversation]:
        """Yield each row as a conversation while the file is read. There are no sessions."""
        schedule = options.schedule or ScheduleSettings(auto_offset=False)
        first = -math.inf if schedule.start_ms is None else schedule.start_ms
        last = math.inf if schedule.end_ms is None else schedule.end_ms
        zero = schedule.start_ms if schedule.start_ms is not None or schedule.auto_offset else 0.0
        scale = options.delay_ratio / schedule.speedup
        kept = 0
        self._lines = Lines(self.files)
        for number, offset, line in self._lines.read(0, errors):
            try:
                row = _read_row(line)
            except _RowError as error:
                errors.add(number, str(error))
                continue
            time = row.time
            if options.schedule is not None:
                if time is None:
                    errors.add(number, _NO_TIME)
                    continue
                self._late.add(number, time)
                if not first <= time <= last:
                    self._dropped += 1
                    continue
                zero = time if zero is None else zero
            kept += 1
            sent, delay = None if time is None else time - (zero or 0.0), (row.delay or 0.0) * scale
            yield RecordedConversation(None, [BodyLocation(0, offset + row.begin, row.end - row.begin, sent, delay)])
        if not kept and not errors.count:
            errors.add(1, "no row lies between --fixed-schedule-start-offset and --fixed-schedule-end-offset")


def _time_at(file: BinaryIO, offset: int) -> float | None:
    file.seek(offset)
    return _read_row(file.readline()).time


def _select_rows(times: NDArray[np.float64], schedule: ScheduleSettings) -> tuple[NDArray[np.int64], float]:
    """Return the rows of the requested part in the order of their times, and the time that is the start."""
    first = -math.inf if schedule.start_ms is None else schedule.start_ms
    last = math.inf if schedule.end_ms is None else schedule.end_ms
    import numpy as np

    kept = np.flatnonzero((times >= first) & (times <= last))
    kept = kept[np.argsort(times[kept], kind="stable")]
    if schedule.start_ms is not None:
        return kept, schedule.start_ms
    return kept, float(times[kept[0]]) if schedule.auto_offset and len(kept) else 0.0


class _Rows:
    """The rows of a trace, in columns."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._lengths = array("Q")
        self.times = array("d")
        """The timestamp of each row, or NaN."""
        self.effective_times = array("d")
        """Like `times`, but a row without a timestamp has that of the previous row of its session."""
        self._delays = array("d")
        self._groups = array("q")
        self._group_of: dict[str, int] = {}
        self._latest: dict[int, float] = {}
        self._count = 0

    def add(self, offset: int, row: _Row) -> bool:
        """Add a row. Return whether it is the first of a conversation."""
        group = self._count
        if row.session is not None:
            group = self._group_of.setdefault(row.session, group)
        is_first = group == self._count
        self._count += is_first
        time = math.nan if row.time is None else row.time
        self._offsets.append(offset + row.begin)
        self._lengths.append(row.end - row.begin)
        self.times.append(time)
        self.effective_times.append(self._latest.get(group, math.nan) if row.time is None else time)
        self._delays.append(row.delay or 0.0)
        self._groups.append(group)
        if row.session is not None:
            self._latest[group] = self.effective_times[-1]
        return is_first

    def conversations(self, kept: NDArray[np.int64], zero: float, speedup: float) -> Iterator[RecordedConversation]:
        """Yield the rows of `kept`, in that order, grouped by session."""
        names = {group: name for name, group in self._group_of.items()}
        import numpy as np

        groups = np.frombuffer(self._groups, np.int64)[kept]
        _, first, counts = np.unique(groups, return_index=True, return_counts=True)
        ends = np.cumsum(counts)
        grouped = kept[np.argsort(groups, kind="stable")]
        for i in np.argsort(first, kind="stable"):
            numbers = grouped[ends[i] - counts[i] : ends[i]].tolist()
            yield RecordedConversation(
                names.get(self._groups[numbers[0]]), [self._location(n, zero, speedup) for n in numbers]
            )

    def _location(self, number: int, zero: float, speedup: float) -> BodyLocation:
        time = self.times[number]
        return BodyLocation(
            0,
            self._offsets[number],
            self._lengths[number],
            None if math.isnan(time) else time - zero,
            self._delays[number] / speedup,
        )


def _read_row(line: bytes) -> _Row:
    try:
        row = _decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        text = replace_lone_surrogates(line)
        if text != line:
            return _read_row(text)
        raise _RowError(_explain_row(error, line)) from None
    payload = memoryview(row.payload)
    if bytes(payload[:1]) != b"{":
        raise _RowError("'payload' should be a request body, a JSON object")
    guess = _PAYLOAD.search(line)
    begin = guess.end() if guess is not None else 0
    if not line.startswith(bytes(payload), begin):  # an earlier text or object has the same key
        begin = address(payload) - address(line)
    session = None if row.session_id in (None, "") else str(row.session_id)
    return _check_numbers(_Row(begin, begin + len(payload), row.timestamp, row.delay, session))


def _explain_row(error: Exception, line: bytes) -> str:
    try:
        members = _decode_members(line)
    except (msgspec.MsgspecError, RecursionError) as syntax_error:
        return explain(syntax_error, line)
    if "payload" in members:
        return explain(error, line)
    if form := next((form for form in FORMS if form in members), None):
        return f"it has '{form}' and no 'payload', which the first row has; put rows of either kind into a file of their own"
    return "it has no 'payload', the request body to send"


def _check_numbers(row: _Row) -> _Row:
    for name, value in (("timestamp", row.time), ("delay", row.delay)):
        if value is not None and not 0 <= value < math.inf:
            raise _RowError(f"'{name}' should be a number of milliseconds, 0 or more")
    return row


def first_row_is_timed(path: str) -> bool:
    """Return whether the first row has a timestamp."""
    return bytes(_first_row(path).get("timestamp", b"null")) != b"null"


def _first_row(path: str) -> dict[str, msgspec.Raw]:
    """Return the fields of the first row that can be read; none if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in islice(file, _TRIED_LINES):
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                return _decode_members(replace_lone_surrogates(line.removeprefix(BOM)))
    return {}


def _matches(first: dict[str, Any]) -> bool:
    return bool({"payload", *FORMS} & first.keys())


def _matches_scheduled(first: dict[str, Any]) -> bool:
    """Match messages with a timestamp as well, which are a line of `raw_payload` without a schedule."""
    return "timestamp" in first and isinstance(first.get("messages"), list)


def _read(path: str, settings: InputSettings) -> Contents:
    first = _first_row(path)
    if "payload" not in first and any(form in first for form in FORMS):
        return read_rows(path, settings)
    return Contents([], recording=Trace(os.fspath(path)))


FORMAT = Format(
    name=_NAME,
    needs="a trace: one object per line with 'input_length', 'text_input', 'messages' or 'payload', and 'timestamp' in ms",
    matches=_matches,
    read=_read,
    matches_scheduled=_matches_scheduled,
    has_times=first_row_is_timed,
)
