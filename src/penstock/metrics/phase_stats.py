"""Accumulate the records of one phase into per-run metrics, error groups and counts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import msgspec

from penstock.metrics.bounds import FigureBounds, RequestBounds
from penstock.metrics.catalogue import CATALOGUE, GROUPS
from penstock.metrics.certificate import RequestCounts
from penstock.metrics.concurrency import Window, count_levels
from penstock.metrics.groups.error_adjusted import ADJUSTED
from penstock.metrics.metric import Measures, PhaseFigures
from penstock.metrics.objectives import Objective, meets
from penstock.metrics.reply_values import requested_length
from penstock.metrics.request_series import SeriesRecorder, SeriesTable
from penstock.metrics.statistics import Column, Columns, Stats
from penstock.metrics.timeline import Timeline
from penstock.records.record import ErrorOwner, Failure, Record

__all__ = ["ErrorGroup", "PhaseStats", "count_by_owner"]

_MESSAGE_LIMIT = 500
_WIDE_NS = 2_000_000
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
    __slots__ = ("count", "message")

    def __init__(self, message: str) -> None:
        self.message = message
        self.count = 0


class PhaseStats:
    """Statistics of one phase. Add all records, then call `metrics()` once."""

    def __init__(
        self,
        folder: str,
        name: str,
        *,
        scheduled: bool = False,
        objectives: tuple[Objective, ...] = (),
        with_timeline: bool = True,
        with_series: bool = False,
    ) -> None:
        """Large columns go to files in `folder` whose names start with `name`.

        `scheduled` is true if requests had recorded send times. Requests that meet all `objectives` are counted.
        Without a time line there are no metrics over time. The series are those of confidence intervals.
        """
        self._scheduled = scheduled
        self._objectives = objectives
        self._good = 0
        prefix = os.path.join(folder, name)
        self._columns = Columns(prefix)
        self._starts = Column(f"{prefix}-starts.f64")
        self._ends = Column(f"{prefix}-ends.f64")
        self._groups: dict[tuple[str, int | None, str, ErrorOwner], _Group] = {}
        self._span = _Span()
        self._bounds = RequestBounds(prefix)
        self._timeline = Timeline(prefix) if with_timeline else None
        self._series = SeriesRecorder(prefix) if with_series else None
        self._context_overflows = 0
        self._streamed = 0
        self._single_stamp_replies = 0
        self._stamps = 0
        self._coalesced_stamps = 0
        self._coalesced_first_stamps = 0
        self._wide_stamps = 0
        self._conversations = 0
        self._length_requested = 0
        self._length_mismatched = 0
        self._usage_compared = 0
        self._usage_discrepant = 0
        self._resent = 0
        self._redirects = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0
        self.without_usage = 0
        """Successful requests whose reply had no usage."""
        self.queued = 0
        """Requests that waited for a free slot."""
        self.longest_queued_ns = 0
        self.finish_reasons: dict[str, int] = {}
        self.warnings: dict[str, int] = {}
        """Irregularities in replies that did not fail the request, with their counts."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First start and last end of all requests, including failed and cancelled ones."""
        return self._span.bounds

    def add(self, record: Record, measures: Measures) -> None:
        self._starts.append(record.start)
        self._ends.append(record.end)
        self._span.cover(record)
        self._conversations += record.turn == 0
        self._resent += record.retries
        self._redirects += record.redirects
        if self._series is not None:
            good = meets(self._objectives, measures.values) if self._objectives else None
            self._series.add(record, measures.values, good)
        if record.cancelled:
            self.cancelled += 1
            return
        if (waited := record.issued - record.intended) > 0:
            self.queued += 1
            self.longest_queued_ns = max(self.longest_queued_ns, waited)
        for warning, count in record.warnings.items():
            self.warnings[warning] = self.warnings.get(warning, 0) + count
        if record.failure is not None:
            self._fail(record.failure)
        else:
            self._succeed(record, measures.values)
            if self._timeline is not None:
                self._timeline.add(record, measures)
        if measures.values:
            self._columns.add(measures.values)
        for tag, values in measures.lists.items():
            self._columns.column(tag).extend(values)

    def _fail(self, failure: Failure) -> None:
        self.failed += 1
        self._context_overflows += _CONTEXT_OVERFLOW.search(failure.message) is not None
        message = failure.message[:_MESSAGE_LIMIT]
        pattern = _VARIABLE.sub("#", message)
        key = (failure.type, failure.code, pattern, failure.owner)
        if key not in self._groups and len(self._groups) >= _GROUP_LIMIT:
            message = _OTHER_MESSAGES
            key = (failure.type, failure.code, message, failure.owner)
        self._groups.setdefault(key, _Group(message)).count += 1

    def _succeed(self, record: Record, values: dict[str, float]) -> None:
        self.succeeded += 1
        if self._objectives:
            self._good += meets(self._objectives, values)
        self.without_usage += record.usage is None
        for reason in record.finish:
            self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + 1
        if record.streamed and record.stamps:
            self._streamed += 1
            self._stamps += len(record.stamps)
            self._single_stamp_replies += len(record.stamps) == 1
            if record.coalesced:
                self._coalesced_stamps += len(record.coalesced)
                self._coalesced_first_stamps += record.coalesced[0] == 0
                self._wide_stamps += sum(
                    record.stamps[index] - earliest > _WIDE_NS
                    for index, earliest in zip(record.coalesced, record.earliest, strict=True)
                )
        if "effective_latency" in values:  # a second count of the tokens has only token metrics
            self._bounds.add(record, values)
        length, requested = values.get("output_sequence_length"), requested_length(record)
        if requested and length is not None:
            self._length_requested += 1
            self._length_mismatched += abs(length - requested) > min(0.05 * requested, 50)
        if differences := [values[tag] for tag in _DIFFERENCES if tag in values]:
            self._usage_compared += 1
            self._usage_discrepant += max(differences) > 10

    def series(self) -> SeriesTable | None:
        """Return the requests in the order of their starts; None if there were none."""
        return None if self._series is None else self._series.table()

    def errors(self) -> list[ErrorGroup]:
        groups = [
            ErrorGroup(kind, code, group.message, owner, group.count)
            for (kind, code, _, owner), group in self._groups.items()
        ]
        return sorted(groups, key=lambda g: (-g.count, g.type, g.code or 0, g.message))

    def request_counts(self) -> RequestCounts:
        client_errors = sum(group.count for (*_, owner), group in self._groups.items() if owner == "penstock")
        return RequestCounts(
            completed=self.succeeded + self.failed,
            succeeded=self.succeeded,
            conversations=self._conversations,
            client_errors=client_errors,
            streams=self._streamed,
            coalesced_first_stamps=self._coalesced_first_stamps,
            stamps=self._stamps,
            coalesced_stamps=self._coalesced_stamps,
            wide_stamps=self._wide_stamps,
        )

    def bounds(self) -> dict[str, dict[str, FigureBounds]]:
        """Return the bounds of the headline figures that are not exactly known. Call it after `metrics()`."""
        columns = self._columns.all()
        return {tag: self._bounds.figures(tag, columns[tag].values()) for tag in self._bounds.tags() if tag in columns}

    def over_time(self, windows: Sequence[Window]) -> list[dict[str, Stats]]:
        """Return the metrics of requests and tokens over time, for each of these parts of the phase's time."""
        if self.span is None or self._timeline is None:
            return [{} for _ in windows]
        levels = count_levels(self._starts, self._ends)
        found = [levels.statistics("requests", window) for window in windows]
        levels.close()
        return [
            stats if concurrency is None else {"effective_concurrency": concurrency, **stats}
            for concurrency, stats in zip(found, self._timeline.over(windows, self.span), strict=True)
        ]

    def metrics(self, window: Window | None = None, over_time: dict[str, Stats] | None = None) -> dict[str, Stats]:
        """Return the metrics that apply, in the order of the catalogue.

        For the requests that started in a part of a phase, `window` is that part, and `over_time` has its metrics over time.
        """
        columns = self._columns.all()
        stats = {tag: column.statistics(CATALOGUE[tag].unit) for tag, column in columns.items()}
        if self.failed:
            for tag in ADJUSTED:
                if column := columns.get(tag):
                    stats[f"adj_{tag}"] = column.with_failures(CATALOGUE[tag].unit, self.failed)
        if window is None and self.span is not None and self.span[0] < self.span[1]:
            (over_time,) = self.over_time([self.span])
        stats |= over_time or {}
        window = window or self.span
        duration_s = None if window is None else (window[1] - window[0]) / 1e9
        figures = PhaseFigures(stats, self._counts(), self.succeeded, duration_s, self._scheduled)
        scalars = [group.summarize(figures) for group in GROUPS if group.summarize is not None]
        for values in scalars:
            stats |= {tag: Stats(CATALOGUE[tag].unit, avg=float(value)) for tag, value in values.items()}
        return {tag: stats[tag] for tag in CATALOGUE if tag in stats}

    def _counts(self) -> dict[str, float]:
        completed = self.succeeded + self.failed
        counts: dict[str, float] = {"request_count": self.succeeded, "completed_request_count": completed}
        if completed:
            counts["request_error_rate"] = 100 * self.failed / completed
        if self.failed:
            counts["error_request_count"] = self.failed
            counts["context_overflow_count"] = self._context_overflows
        if self.cancelled:
            counts["cancelled_request_count"] = self.cancelled
        if self._resent:
            counts["resent_request_count"] = self._resent
        if self._redirects:
            counts["redirect_count"] = self._redirects
        if self._streamed:
            counts["single_stamp_request_count"] = self._single_stamp_replies
            counts["coalesced_stamp_count"] = self._coalesced_stamps
            counts["coalesced_first_stamp_count"] = self._coalesced_first_stamps
        if self._length_requested:
            counts["osl_mismatch_count"] = self._length_mismatched
        if self._usage_compared:
            counts["usage_discrepancy_count"] = self._usage_discrepant
        if self._objectives:
            counts["good_request_count"] = self._good
        return counts


class _Span:
    """The time from the first start to the last end of the records covered."""

    __slots__ = ("bounds",)

    def __init__(self) -> None:
        self.bounds: tuple[int, int] | None = None

    def cover(self, record: Record) -> None:
        if self.bounds is None:
            self.bounds = record.start, record.end
            return
        first, last = self.bounds
        if record.start < first or record.end > last:
            self.bounds = min(first, record.start), max(last, record.end)


def count_by_owner(groups: Iterable[ErrorGroup]) -> dict[str, int]:
    """Return the number of failures per error owner."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.owner] = counts.get(group.owner, 0) + group.count
    return counts
