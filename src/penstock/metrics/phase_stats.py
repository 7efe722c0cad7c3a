"""Accumulate the records of one phase into per-run metrics, error groups and counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress

import msgspec
import numpy as np

from penstock.metrics.batch import Batch, MeasureTable, Selection
from penstock.metrics.bounds import WIDE_NS, FigureBounds, RequestBounds, Unresolved
from penstock.metrics.catalogue import CATALOGUE, GROUPS
from penstock.metrics.certificate import RequestCounts
from penstock.metrics.concurrency import Window, count_overlaps
from penstock.metrics.counts import Counts
from penstock.metrics.groups.error_adjusted import ADJUSTED
from penstock.metrics.metric import Measures, PhaseFigures
from penstock.metrics.objectives import Objective, meets
from penstock.metrics.request_series import SeriesRecorder, SeriesTable
from penstock.metrics.statistics import Column, Stats, Values
from penstock.metrics.timeline import Timeline
from penstock.records.record import ErrorOwner, Failure, Record
from penstock.scratch import Scratch

_MESSAGE_LIMIT = 500
_GROUP_LIMIT = 1_000
"""Failures beyond this number of groups share one group per type, code and owner."""
_VARIABLE = re.compile(r"(?<![\w-])[\w-]*\d[\w-]*")
"""A word with a digit: an id, count or time. Messages that differ only in such words form one group, shown as its first
message. The lookbehind starts matches at word starts only; otherwise a long word would take quadratic time."""
_OTHER_MESSAGES = "(other messages)"
_CONTEXT_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum (sequence|prompt|input) length"
    r"|(prompt|input) is too long|too many tokens",
    re.IGNORECASE,
)
_DIFFERENCES = tuple(f"usage_{part}_tokens_diff_pct" for part in ("prompt", "completion", "reasoning"))


class ErrorGroup(msgspec.Struct, frozen=True):
    type: str
    code: int | None
    message: str
    owner: ErrorOwner
    count: int


class _Group:
    def __init__(self, message: str) -> None:
        self.message = message
        self.count = 0


_GroupKey = tuple[str, int | None, str, ErrorOwner]
"""Type, code, message without its variable words, and owner."""


class PhaseCounts(Counts):
    """Counts of requests, and of what was in them."""

    context_overflows: int = 0
    streamed: int = 0
    single_stamp_replies: int = 0
    stamps: int = 0
    coalesced_stamps: int = 0
    coalesced_first_stamps: int = 0
    wide_stamps: int = 0
    conversations: int = 0
    length_requested: int = 0
    length_mismatched: int = 0
    usage_compared: int = 0
    usage_discrepant: int = 0
    resent: int = 0
    redirects: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    without_usage: int = 0
    """Successful requests whose reply had no usage."""
    queued: int = 0
    """Requests that waited for a free slot."""
    good: int = 0


class PhaseStats:
    """Statistics of one phase. Add all records, then call `metrics()` once."""

    def __init__(
        self,
        scratch: Scratch,
        *,
        scheduled: bool = False,
        objectives: tuple[Objective, ...] = (),
        with_timeline: bool = True,
        with_series: bool = False,
    ) -> None:
        """`scheduled` is true if requests had recorded send times. Requests that meet all `objectives` are counted.
        Without a time line there are no metrics over time. The series are those of confidence intervals.
        """
        self._scheduled = scheduled
        self._objectives = objectives
        self._scratch = scratch
        self._columns: dict[str, Column] = {}
        self._starts, self._ends = Column(scratch), Column(scratch)
        self._groups: dict[_GroupKey, _Group] = {}
        self.span: Window | None = None
        """First start and last end of all requests, including failed and cancelled ones."""
        self._bounds = RequestBounds(scratch)
        self._timeline = Timeline(scratch) if with_timeline else None
        self._series = SeriesRecorder(scratch) if with_series else None
        self.counts = PhaseCounts()
        self.longest_queued_ns = 0
        self.finish_reasons: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        """Irregularities in replies that did not fail the request, with their counts."""

    def add(self, record: Record, measures: Measures) -> None:
        """Add one request, which takes as long as a hundred with `add_batch`."""
        self.add_batch(Batch((record,)), MeasureTable.of((measures,)))

    def add_batch(self, batch: Batch, table: MeasureTable) -> None:
        self._starts.extend(batch.start)
        self._ends.extend(batch.end)
        self._cover(int(batch.start.min()), int(batch.end.max()))
        self.counts.conversations += int((batch.turn == 0).sum())
        self.counts.resent += int(batch.get("retries").sum())
        self.counts.redirects += int(batch.redirects.sum())
        good = meets(self._objectives, table) if self._objectives else None
        if self._series is not None:
            self._series.add(batch, table, good)
        ended = ~batch.cancelled
        self.counts.cancelled += batch.size - int(ended.sum())
        waited = (batch.issued - batch.intended)[ended]
        if (waited > 0).any():
            self.counts.queued += int((waited > 0).sum())
            self.longest_queued_ns = max(self.longest_queued_ns, int(waited.max()))
        for record in batch.records:
            if record.warnings and not record.cancelled:
                self.warnings.update(record.warnings)
        for index in np.flatnonzero(batch.failed):
            failure = batch.records[index].failure
            assert failure is not None
            self._fail(failure)
        if batch.succeeded.any():
            self._succeed(batch, table, good)
        for tag in table.values:
            self._column(tag).extend(table.present(tag))
        for tag, lists in table.lists.items():
            self._column(tag).extend(lists.values)

    def merge(self, other: PhaseStats) -> None:
        """Add the requests that another object took, which is not used any more."""
        self.counts.merge(other.counts)
        self.longest_queued_ns = max(self.longest_queued_ns, other.longest_queued_ns)
        self.finish_reasons.update(other.finish_reasons)
        self.warnings.update(other.warnings)
        if other.span is not None:
            self._cover(*other.span)
        for key, group in other._groups.items():
            self._group(key, group.message).count += group.count
        self._starts.merge(other._starts)
        self._ends.merge(other._ends)
        for tag, column in other._columns.items():
            self._column(tag).merge(column)
        self._bounds.merge(other._bounds)
        if self._timeline is not None and other._timeline is not None:
            self._timeline.merge(other._timeline)
        if self._series is not None and other._series is not None:
            self._series.merge(other._series)

    def _column(self, tag: str) -> Column:
        column = self._columns.get(tag)
        if column is None:
            column = self._columns[tag] = Column(self._scratch)
        return column

    def _cover(self, first: int, last: int) -> None:
        if self.span is not None:
            first, last = min(first, self.span[0]), max(last, self.span[1])
        self.span = first, last

    def _fail(self, failure: Failure) -> None:
        self.counts.failed += 1
        self.counts.context_overflows += _CONTEXT_OVERFLOW.search(failure.message) is not None
        message = failure.message[:_MESSAGE_LIMIT]
        pattern = _VARIABLE.sub("#", message)
        self._group((failure.type, failure.code, pattern, failure.owner), message).count += 1

    def _group(self, key: _GroupKey, message: str) -> _Group:
        if key not in self._groups and len(self._groups) >= _GROUP_LIMIT:
            kind, code, _, owner = key
            message = _OTHER_MESSAGES
            key = (kind, code, message, owner)
        return self._groups.setdefault(key, _Group(message))

    def _succeed(self, batch: Batch, table: MeasureTable, good: Selection | None) -> None:
        ok = batch.succeeded
        self.counts.succeeded += int(ok.sum())
        if self._scheduled:
            self._column("replay_server_lag").extend((batch.issued - batch.intended)[ok] / 1e6)
            self._column("replay_client_lag").extend((batch.start - batch.issued)[ok] / 1e6)
        if good is not None:
            self.counts.good += int((good & ok).sum())
        self.counts.without_usage += int((ok & ~batch.has_usage).sum())
        finished = compress((record.finish for record in batch.records), ok.tolist())
        self.finish_reasons.update(chain.from_iterable(finished))
        streamed = ok & batch.has_stamps
        self.counts.streamed += int(streamed.sum())
        self.counts.stamps += int(batch.stamp_counts[streamed].sum())
        self.counts.single_stamp_replies += int((batch.stamp_counts[streamed] == 1).sum())
        if len(batch.coalesced):
            self.counts.coalesced_stamps += int(batch.coalesced_counts[streamed].sum())
            self.counts.coalesced_first_stamps += int((batch.coalesced_first & streamed).sum())
            wide = batch.stamps[batch.coalesced] - batch.earliest > WIDE_NS
            self.counts.wide_stamps += int((wide & np.repeat(streamed, batch.coalesced_counts)).sum())
        self._bounds.add(batch, table)
        if self._timeline is not None:
            self._timeline.add(batch, table)
        length, requested = table.get("output_sequence_length"), batch.requested
        compared = ~np.isnan(length) & (requested > 0)
        self.counts.length_requested += int(compared.sum())
        tolerated = np.minimum(0.05 * requested, 50)
        self.counts.length_mismatched += int((compared & (np.abs(length - requested) > tolerated)).sum())
        if differences := [table.values[tag] for tag in _DIFFERENCES if tag in table.values]:
            largest = np.fmax.reduce(differences)
            self.counts.usage_compared += int((~np.isnan(largest)).sum())
            self.counts.usage_discrepant += int((largest > 10).sum())

    def series(self) -> SeriesTable | None:
        """Return the requests in the order of their starts; None if there were none."""
        return None if self._series is None else self._series.table()

    def values(self, tag: str) -> Values:
        """Return the values of a metric for single requests."""
        return np.array(self._columns[tag].values()) if tag in self._columns else np.empty(0)

    def errors(self) -> list[ErrorGroup]:
        groups = [
            ErrorGroup(kind, code, group.message, owner, group.count)
            for (kind, code, _, owner), group in self._groups.items()
        ]
        return sorted(groups, key=lambda g: (-g.count, g.type, g.code or 0, g.message))

    def request_counts(self) -> RequestCounts:
        client_errors = sum(group.count for (*_, owner), group in self._groups.items() if owner == "penstock")
        return RequestCounts(
            completed=self.counts.succeeded + self.counts.failed,
            succeeded=self.counts.succeeded,
            conversations=self.counts.conversations,
            client_errors=client_errors,
            streams=self.counts.streamed,
            coalesced_first_stamps=self.counts.coalesced_first_stamps,
            stamps=self.counts.stamps,
            coalesced_stamps=self.counts.coalesced_stamps,
            wide_stamps=self.counts.wide_stamps,
        )

    def bounds(self) -> dict[str, dict[str, FigureBounds]]:
        """Return the bounds of the headline figures that are not exactly known. Call it after `metrics()`."""
        columns = self._columns
        return {tag: self._bounds.figures(tag, columns[tag].values()) for tag in self._bounds.tags() if tag in columns}

    def unresolved(self) -> dict[str, Unresolved]:
        """Return how many replies have tokens that reads cannot tell apart, by metric."""
        return self._bounds.unresolved

    def over_time(self, windows: Sequence[Window]) -> list[dict[str, Stats]]:
        """Return the metrics of requests and tokens over time, for each of these parts of the phase's time."""
        if self.span is None or self._timeline is None:
            return [{} for _ in windows]
        overlaps = count_overlaps(self._starts, self._ends, self._scratch)
        found = [overlaps.statistics("requests", window) for window in windows]
        return [
            stats if concurrency is None else {"effective_concurrency": concurrency, **stats}
            for concurrency, stats in zip(found, self._timeline.over(windows, self.span), strict=True)
        ]

    def metrics(self, window: Window | None = None, over_time: dict[str, Stats] | None = None) -> dict[str, Stats]:
        """Return the metrics that apply, in the order of the catalogue.

        For the requests that started in a part of a phase, `window` is that part, and `over_time` has its metrics over time.
        """
        columns = self._columns
        stats = {tag: column.statistics(CATALOGUE[tag].unit) for tag, column in columns.items()}
        if self.counts.failed:
            for tag in ADJUSTED:
                if column := columns.get(tag):
                    stats[f"adj_{tag}"] = column.with_failures(CATALOGUE[tag].unit, self.counts.failed)
        if window is None and self.span is not None and self.span[0] < self.span[1]:
            (over_time,) = self.over_time([self.span])
        stats |= over_time or {}
        window = window or self.span
        duration_s = None if window is None else (window[1] - window[0]) / 1e9
        figures = PhaseFigures(stats, self._counts(), self.counts.succeeded, duration_s, self._scheduled)
        scalars = [group.summarize(figures) for group in GROUPS if group.summarize is not None]
        for values in scalars:
            stats |= {tag: Stats(CATALOGUE[tag].unit, avg=float(value)) for tag, value in values.items()}
        return {tag: stats[tag] for tag in CATALOGUE if tag in stats}

    def _counts(self) -> dict[str, float]:
        completed = self.counts.succeeded + self.counts.failed
        counts: dict[str, float] = {"request_count": self.counts.succeeded, "completed_request_count": completed}
        if completed:
            counts["request_error_rate"] = 100 * self.counts.failed / completed
        if self.counts.failed:
            counts["error_request_count"] = self.counts.failed
            counts["context_overflow_count"] = self.counts.context_overflows
        if self.counts.cancelled:
            counts["cancelled_request_count"] = self.counts.cancelled
        if self.counts.resent:
            counts["resent_request_count"] = self.counts.resent
        if self.counts.redirects:
            counts["redirect_count"] = self.counts.redirects
        if self.counts.streamed:
            counts["single_stamp_request_count"] = self.counts.single_stamp_replies
            counts["coalesced_stamp_count"] = self.counts.coalesced_stamps
            counts["coalesced_first_stamp_count"] = self.counts.coalesced_first_stamps
        if self.counts.length_requested:
            counts["osl_mismatch_count"] = self.counts.length_mismatched
        if self.counts.usage_compared:
            counts["usage_discrepancy_count"] = self.counts.usage_discrepant
        if self._objectives:
            counts["good_request_count"] = self.counts.good
        return counts


def count_by_owner(groups: Iterable[ErrorGroup]) -> dict[str, int]:
    """Return the number of failures per error owner."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.owner] = counts.get(group.owner, 0) + group.count
    return counts
