"""Requests and their metrics as columns: the metrics of thousands of requests cost little more than those of one.

All numbers are float64, and NaN stands for what a request does not have. Times are nanoseconds from the run's epoch, which
float64 holds exactly for a hundred days.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import cached_property
from itertools import chain
from math import nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.metric import Measures, TokenCounts
from penstock.metrics.statistics import Values
from penstock.records.record import Record, Usage

Selection = NDArray[np.bool_]
Indexes = NDArray[np.intp]
_NOTHING: list[int] = []
_WHOLE_FIELDS = (
    *("phase", "number", "conversation", "turn", "worker", "url", "intended", "issued", "start", "end", "dns_ns"),
    *("connect_ns", "reused", "retries", "streamed", "cancelled", "bytes_sent", "bytes_received", "reads", "redirects"),
    "images",
)
"""Fields of a record that are always whole numbers or flags."""
_get_whole = attrgetter(*_WHOLE_FIELDS)
_USAGE_FIELDS = Usage.__struct_fields__
_NO_USAGE = Usage()
_get_usage = attrgetter(*_USAGE_FIELDS)


def column(values: Sequence[Any]) -> Values:
    """Return numbers as an array, with NaN for None."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except TypeError:
        if values.count(None) == len(values):
            return np.full(len(values), nan)
        return np.fromiter((nan if value is None else value for value in values), np.float64, len(values))


def _flags(values: list[bool]) -> Selection:
    return np.fromiter(values, np.bool_, len(values))


def _lengths(lists: Sequence[Sized]) -> Indexes:
    return np.fromiter(map(len, lists), np.intp, len(lists))


def _flat(lists: Sequence[Sequence[int]], total: int) -> Values:
    # Twice as fast as an iterator over floats.
    return np.fromiter(chain.from_iterable(lists), np.int64, total).astype(np.float64)


class Batch:
    """Requests of one phase, in the order of the log."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.size = len(records)
        # The fields are read together, because most of the time is spent on loading the records.
        count = len(_WHOLE_FIELDS)
        rows = np.fromiter(chain.from_iterable(map(_get_whole, records)), np.int64, count * self.size)
        columns = np.ascontiguousarray(rows.reshape(self.size, count).T, dtype=np.float64)
        self._whole: dict[str, Values] = dict(zip(_WHOLE_FIELDS, columns, strict=True))
        self.start, self.end = self._whole["start"], self._whole["end"]
        self.intended, self.issued = self._whole["intended"], self._whole["issued"]
        self.turn, self.redirects = self._whole["turn"], self._whole["redirects"]
        self.connect, self.bytes_sent = self._whole["connect_ns"], self._whole["bytes_sent"]
        self.streamed, self.cancelled = self._whole["streamed"] > 0, self._whole["cancelled"] > 0

    def get(self, name: str) -> Values:
        """Return a field of the records that is a number or None."""
        found = self._whole.get(name)
        return column(list(map(attrgetter(name), self.records))) if found is None else found

    @cached_property
    def sent(self) -> Values:
        return self.get("sent")

    @cached_property
    def failed(self) -> Selection:
        """Requests that failed and were not cancelled."""
        return _flags([record.failure is not None for record in self.records]) & ~self.cancelled

    @cached_property
    def succeeded(self) -> Selection:
        return ~(self.cancelled | self.failed)

    @cached_property
    def choices(self) -> Values:
        """Number of choices of each reply. A server generates them in parallel."""
        outputs = _lengths([record.outputs for record in self.records])
        reasonings = _lengths([record.reasonings for record in self.records])
        return np.array(np.maximum(np.maximum(outputs, reasonings), 1), np.float64)

    @cached_property
    def requested(self) -> Values:
        """Output tokens requested for all choices together; NaN or 0 if none were."""
        requested: Values = self.get("requested_output") * self.choices
        return requested

    @cached_property
    def has_usage(self) -> Selection:
        """Replies whose tokens the server counted."""
        return _flags(
            [
                record.usage is not None and (record.usage.completion is not None or not any(record.outputs))
                for record in self.records
            ]
        )

    @cached_property
    def _usages(self) -> dict[str, Values]:
        rows = [_get_usage(record.usage or _NO_USAGE) for record in self.records]
        return {field: column(values) for field, values in zip(_USAGE_FIELDS, zip(*rows, strict=True), strict=True)}

    def usage(self, field: str) -> Values:
        """Return a count of the servers."""
        return self._usages[field]

    @cached_property
    def completion(self) -> Values:
        return self.usage("completion")

    @cached_property
    def prompt(self) -> Values:
        return self.usage("prompt")

    # Stamps. Replies that were not streamed have none.

    @cached_property
    def _stamp_lists(self) -> list[list[int]]:
        return [record.stamps if record.streamed else _NOTHING for record in self.records]

    @cached_property
    def stamp_counts(self) -> Indexes:
        return _lengths(self._stamp_lists)

    @cached_property
    def stamps(self) -> Values:
        """The stamps of all requests, one request after the other, and a NaN after the last."""
        total = int(self.stamp_counts.sum())
        return np.append(_flat(self._stamp_lists, total), nan)

    @cached_property
    def begins(self) -> Indexes:
        """Index of the first stamp of each request."""
        return np.cumsum(self.stamp_counts) - self.stamp_counts

    @cached_property
    def has_stamps(self) -> Selection:
        return self.stamp_counts > 0

    def at(self, index: Indexes | int, where: Selection, stamps: Values | None = None) -> Values:
        """Return the stamp with this index of each request in `where`."""
        stamps = self.stamps if stamps is None else stamps
        found: Values = stamps[np.where(where, self.begins + index, len(stamps) - 1)]
        return found

    @cached_property
    def first(self) -> Values:
        return self.at(0, self.has_stamps)

    @cached_property
    def last(self) -> Values:
        return self.at(self.stamp_counts - 1, self.has_stamps)

    @cached_property
    def latency(self) -> Values:
        """Time from start to the last content of a stream, or to the last byte of any other reply."""
        return np.where(self.has_stamps, self.last, self.end - self.start)

    @cached_property
    def pieces(self) -> Values:
        """Pieces of content of each reply."""
        return column(list(map(sum, map(attrgetter("pieces"), self.records))))

    @cached_property
    def first_pieces(self) -> Values:
        """Pieces of content with the first stamp of each reply."""
        return column([record.pieces[0] if record.pieces else None for record in self.records])

    @cached_property
    def stamp_pieces(self) -> Values | None:
        """Pieces of content with each stamp, one request after the other; None if it is one each."""
        if not (self.has_stamps & (self.pieces > self.stamp_counts)).any():
            return None
        lists = [record.pieces if record.streamed else _NOTHING for record in self.records]
        return _flat(lists, int(self.stamp_counts.sum()))

    @cached_property
    def _coalesced_lists(self) -> list[list[int]]:
        return [record.coalesced if record.streamed else _NOTHING for record in self.records]

    @cached_property
    def coalesced_counts(self) -> Indexes:
        return _lengths(self._coalesced_lists)

    @cached_property
    def coalesced(self) -> Indexes:
        """Indexes into `stamps` of those that may cover several segments."""
        lists, counts = self._coalesced_lists, self.coalesced_counts
        return np.repeat(self.begins, counts) + _flat(lists, int(counts.sum())).astype(np.intp)

    @cached_property
    def coalesced_first(self) -> Selection:
        """Requests whose first stamp may cover several segments."""
        return _flags([each[:1] == [0] for each in self._coalesced_lists])

    @cached_property
    def earliest(self) -> Values:
        """For each of the `coalesced` stamps, when the socket was last known to be empty."""
        lists = [record.earliest if record.streamed else _NOTHING for record in self.records]
        return _flat(lists, int(self.coalesced_counts.sum()))

    @cached_property
    def gap_counts(self) -> Indexes:
        return np.maximum(self.stamp_counts - 1, 0)

    @cached_property
    def _gap_ends(self) -> Selection:
        """The stamps that end a gap: all but the first ones."""
        ends = np.ones(len(self.stamps) - 1, np.bool_)
        ends[self.begins[self.has_stamps]] = False
        return ends

    @cached_property
    def gaps(self) -> Values:
        """Times between stamps in ms, one request after the other."""
        return np.diff(self.stamps[:-1], prepend=0.0)[self._gap_ends] / 1e6

    @cached_property
    def inexact_gaps(self) -> Selection | None:
        """The gaps that begin or end with a coalesced stamp; None if there are none."""
        if not len(self.coalesced):
            return None
        flags = np.zeros(len(self.stamps) - 1, np.bool_)
        flags[self.coalesced] = True
        either = flags.copy()
        either[1:] |= flags[:-1]
        inexact: Selection = either[self._gap_ends]
        return inexact


class CountColumns:
    """Token counts of a batch."""

    def __init__(self, counts: Sequence[TokenCounts]) -> None:
        self.input = column([count.input for count in counts])
        self.output = column([count.output for count in counts])
        self.reasoning = column([count.reasoning for count in counts])
        self.head = column([count.head for count in counts])
        self.by_server = _flags([count.by_server for count in counts])
        self.total = self.output + np.nan_to_num(self.reasoning)


class Lists(NamedTuple):
    """The values of a metric with several for each request."""

    values: Values
    counts: Indexes


class Layout(NamedTuple):
    """Requests that have the same metrics."""

    tags: tuple[str, ...]
    """Metrics of kind `record`."""
    lists: tuple[str, ...]
    """Metrics of kind `list`."""
    rows: list[int]
    values: list[list[float]]
    """For each tag, the values of the rows: integers if the metric counts."""


class MeasureTable:
    """The metrics of a batch, in the order in which they are added."""

    def __init__(self, size: int, unfit: frozenset[str] = frozenset()) -> None:
        """The metrics in `unfit` are left out."""
        self.size = size
        self.values: dict[str, Values] = {}
        self.lists: dict[str, Lists] = {}
        self._unfit = unfit
        self._whole: set[str] = set()
        self._complete: set[str] = set()

    @classmethod
    def of(cls, measures: Sequence[Measures], unfit: frozenset[str] = frozenset()) -> MeasureTable:
        """Return the table with these rows."""
        table = cls(len(measures), unfit)
        for tag in dict.fromkeys(tag for each in measures for tag in each.values):
            found = [each.values.get(tag) for each in measures]
            table.put(tag, column(found), whole=not any(isinstance(value, float) for value in found))
        for tag in dict.fromkeys(tag for each in measures for tag in each.lists):
            arrays = [each.lists.get(tag, np.empty(0)) for each in measures]
            table.put_lists(tag, np.concatenate(arrays), _lengths(arrays))
        return table

    def put(self, tag: str, values: Values, where: Selection | None = None, *, whole: bool = False) -> None:
        """Add a metric for the requests in `where`; by default, for all that have a number. `whole`: the values are counts."""
        if tag in self._unfit:
            return
        if where is not None and not where.all():
            values = np.where(where, values, nan)
        missing = np.isnan(values)
        if not missing.any():
            self._complete.add(tag)
        elif missing.all():
            return
        self.values[tag] = values
        if whole:
            self._whole.add(tag)

    def put_lists(self, tag: str, values: Values, counts: Indexes) -> None:
        if tag not in self._unfit and len(values):
            self.lists[tag] = Lists(values, counts)

    def get(self, tag: str) -> Values:
        """Return the values of a metric, with NaN for requests without one."""
        found = self.values.get(tag)
        return np.full(self.size, nan) if found is None else found

    def present(self, tag: str) -> Values:
        """Return the values of the requests that have the metric."""
        values = self.values[tag]
        return values if tag in self._complete else values[~np.isnan(values)]

    def only(self, tags: Iterable[str]) -> MeasureTable:
        """Return the table with these metrics of kind `record`."""
        table = MeasureTable(self.size)
        for tag in tags:
            if tag in self.values:
                table.put(tag, self.values[tag], whole=tag in self._whole)
        return table

    def layouts(self) -> Iterator[Layout]:
        """Yield the requests by the metrics that they have."""
        every = len(self._complete) == len(self.values)
        if every and all(each.counts.all() for each in self.lists.values()):
            yield self._layout(np.ones(len(self.values) + len(self.lists), np.bool_), np.arange(self.size))
            return
        columns = [~np.isnan(values) for values in self.values.values()]
        columns += [each.counts > 0 for each in self.lists.values()]
        present = np.array(columns)
        packed = np.packbits(present, axis=0).T
        keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        for number, row in enumerate(first):
            yield self._layout(present[:, row], np.flatnonzero(group == number))

    def _layout(self, present: Selection, rows: Indexes) -> Layout:
        flags = present.tolist()
        tags = tuple(tag for tag, flag in zip(self.values, flags, strict=False) if flag)
        lists = tuple(tag for tag, flag in zip(self.lists, flags[len(self.values) :], strict=True) if flag)
        values = [self._numbers(tag, rows) for tag in tags]
        return Layout(tags, lists, rows.tolist(), values)

    def _numbers(self, tag: str, rows: Indexes) -> list[float]:
        values = self.values[tag][rows]
        numbers: list[float] = values.astype(np.int64).tolist() if tag in self._whole else values.tolist()
        return numbers

    def list_rows(self, tag: str) -> list[Values]:
        """Return the values of each request of a metric of kind `list`."""
        values, counts = self.lists[tag]
        ends = np.cumsum(counts).tolist()
        return [values[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]

    def row(self, index: int) -> Measures:
        """Return the metrics of one request."""
        values = {tag: float(values[index]) for tag, values in self.values.items() if not np.isnan(values[index])}
        whole = {tag: int(value) for tag, value in values.items() if tag in self._whole}
        return Measures(values | whole, {})

    @cached_property
    def rows(self) -> list[Measures]:
        """The metrics of each request."""
        found: list[Measures] = [Measures({}, {})] * self.size
        lists = {tag: self.list_rows(tag) for tag in self.lists}
        for layout in self.layouts():
            rows = zip(*layout.values, strict=True) if layout.tags else ((),) * len(layout.rows)
            for row, values in zip(layout.rows, rows, strict=True):
                found[row] = Measures(
                    dict(zip(layout.tags, values, strict=True)), {tag: lists[tag][row] for tag in layout.lists}
                )
        return found
