"""Everything that one phase's records add up to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import msgspec

from penstock.metrics.catalogue import ADJUSTED, CATALOGUE
from penstock.metrics.certificate import Measured
from penstock.metrics.concurrency import effective_concurrency
from penstock.metrics.measure import Measures, asked_length
from penstock.metrics.statistics import Column, Columns, Stats
from penstock.records.record import ErrorOwner, Failure, Record

__all__ = ["ErrorGroup", "PhaseStats", "by_owner"]

_MESSAGE_LIMIT = 500
_DEGRADED_MS = 500
_GROUP_LIMIT = 1_000
"""Beyond so many different messages the others share one group a type."""
_VARIABLE = re.compile(r"(?<![\w-])[\w-]*\d[\w-]*")
"""Ids, counts and times: messages that differ in nothing else are one group, shown by its first. (A match begins where a
word does, and only there is one looked for: from each letter of a long word it would take the square of its length.)"""
_OTHER_MESSAGES = "(other messages)"
_CONTEXT_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum (sequence|prompt|input) length"
    r"|(prompt|input) is too long|too many tokens",
    re.IGNORECASE,
)
_DIFFERENCES = tuple(f"usage_{part}_tokens_diff_pct" for part in ("prompt", "completion", "reasoning"))
_TOTALS = {
    "total_isl": "input_sequence_length",
    "total_osl": "output_sequence_length",
    "total_output_tokens": "output_token_count",
    "total_reasoning_tokens": "reasoning_token_count",
    "total_error_isl": "error_isl",
    **{f"total_{tag}": tag for tag in CATALOGUE if tag.startswith("usage_") and tag.endswith("_tokens")},
}


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
    """Takes records one by one; `metrics()` is asked once, at the end."""

    def __init__(self, folder: str, name: str, *, scheduled: bool = False) -> None:
        """Large columns go to files in `folder` that begin with `name`; `scheduled`: requests had recorded times."""
        self._scheduled = scheduled
        prefix = os.path.join(folder, name)
        self._columns = Columns(prefix)
        self._starts = Column(f"{prefix}-starts.f64")
        self._ends = Column(f"{prefix}-ends.f64")
        self._groups: dict[tuple[str, int | None, str, ErrorOwner], _Group] = {}
        self._span = _Span()
        self._overflows = 0
        self._streamed = 0
        self._single_stamp = 0
        self._stamps = 0
        self._coalesced = 0
        self._first_coalesced = 0
        self._asked = 0
        self._mismatched = 0
        self._compared = 0
        self._discrepant = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0
        self.without_usage = 0
        """Successes that say nothing of the server's token counts."""
        self.queued = 0
        """Requests that were due and found no free slot."""
        self.longest_queued_ns = 0
        self.finish_reasons: dict[str, int] = {}
        self.warnings: dict[str, int] = {}
        """Oddities of the replies, with their counts."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First start and last end of all requests: what hung or failed took its time, too."""
        return self._span.bounds

    def add(self, record: Record, measures: Measures) -> None:
        self._starts.append(record.start)
        self._ends.append(record.end)
        self._span.cover(record)
        if record.cancelled:
            self.cancelled += 1
            return
        if (waited := record.issued - record.intended) > 0:
            self.queued += 1
            self.longest_queued_ns = max(self.longest_queued_ns, waited)
        for what, count in record.warnings.items():
            self.warnings[what] = self.warnings.get(what, 0) + count
        if record.failure is not None:
            self._fail(record.failure)
        else:
            self._succeed(record, measures.values)
        if measures.values:
            self._columns.add(measures.values)
        for tag, values in measures.lists.items():
            self._columns.column(tag).extend(values)

    def _fail(self, failure: Failure) -> None:
        self.failed += 1
        self._overflows += _CONTEXT_OVERFLOW.search(failure.message) is not None
        message = failure.message[:_MESSAGE_LIMIT]
        shape = _VARIABLE.sub("#", message)
        key = (failure.type, failure.code, shape, failure.owner)
        if key not in self._groups and len(self._groups) >= _GROUP_LIMIT:
            message = _OTHER_MESSAGES
            key = (failure.type, failure.code, message, failure.owner)
        self._groups.setdefault(key, _Group(message)).count += 1

    def _succeed(self, record: Record, values: dict[str, float]) -> None:
        self.succeeded += 1
        self.without_usage += record.usage is None
        for reason in record.finish:
            self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + 1
        if record.streamed and record.stamps:
            self._streamed += 1
            self._stamps += len(record.stamps)
            self._single_stamp += len(record.stamps) == 1
            self._coalesced += record.coalesced
            self._first_coalesced += record.first_coalesced
        length, asked = values.get("output_sequence_length"), asked_length(record)
        if asked and length is not None:
            self._asked += 1
            self._mismatched += abs(length - asked) > min(0.05 * asked, 50)
        if off := [values[tag] for tag in _DIFFERENCES if tag in values]:
            self._compared += 1
            self._discrepant += max(off) > 10

    def errors(self) -> list[ErrorGroup]:
        groups = [
            ErrorGroup(kind, code, group.message, owner, group.count)
            for (kind, code, _, owner), group in self._groups.items()
        ]
        return sorted(groups, key=lambda g: (-g.count, g.type, g.code or 0, g.message))

    def measured(self) -> Measured:
        ours = sum(group.count for (*_, owner), group in self._groups.items() if owner == "penstock")
        return Measured(
            completed=self.succeeded + self.failed,
            succeeded=self.succeeded,
            own_faults=ours,
            streams=self._streamed,
            first_coalesced=self._first_coalesced,
            stamps=self._stamps,
            coalesced=self._coalesced,
        )

    def metrics(self) -> dict[str, Stats]:
        """In the order of the catalogue; what does not apply is absent."""
        columns = self._columns.all()
        found = {tag: column.statistics(CATALOGUE[tag].unit) for tag, column in columns.items()}
        if self.failed:
            for tag in ADJUSTED:
                if column := columns.get(tag):
                    found[f"adj_{tag}"] = column.with_failures(CATALOGUE[tag].unit, self.failed)
        if self._starts and (concurrency := effective_concurrency(self._starts, self._ends, "requests")):
            found["effective_concurrency"] = concurrency
        scalars = self._counts() | _totals(found)
        if self._scheduled:
            scalars |= _lags(found.get("credit_to_start_latency"))
        scalars |= _rates(self.succeeded, self._duration_s(), scalars)
        found |= {tag: Stats(CATALOGUE[tag].unit, avg=float(value)) for tag, value in scalars.items()}
        return {tag: found[tag] for tag in CATALOGUE if tag in found}

    def _duration_s(self) -> float | None:
        return None if self.span is None else (self.span[1] - self.span[0]) / 1e9

    def _counts(self) -> dict[str, float]:
        completed = self.succeeded + self.failed
        found: dict[str, float] = {"request_count": self.succeeded, "completed_request_count": completed}
        if completed:
            found["request_error_rate"] = 100 * self.failed / completed
        if self.failed:
            found["error_request_count"] = self.failed
            found["context_overflow_count"] = self._overflows
        if self.cancelled:
            found["cancelled_request_count"] = self.cancelled
        if self._streamed:
            found["single_stamp_request_count"] = self._single_stamp
            found["coalesced_stamp_count"] = self._coalesced
            found["coalesced_first_stamp_count"] = self._first_coalesced
        if self._asked:
            found["osl_mismatch_count"] = self._mismatched
        if self._compared:
            found["usage_discrepancy_count"] = self._discrepant
        return found


class _Span:
    """First start and last end."""

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


def _lags(late: Stats | None) -> dict[str, float]:
    """How far a replay was behind its recording."""
    if late is None or late.p50 is None or late.p90 is None or late.p99 is None:
        return {}
    lags = {"replay_sched_lag_p50": late.p50, "replay_sched_lag_p90": late.p90, "replay_sched_lag_p99": late.p99}
    return {**lags, "replay_sched_degraded": float(late.p99 > _DEGRADED_MS)}


def _totals(found: dict[str, Stats]) -> dict[str, float]:
    sums = {total: stats.sum for total, tag in _TOTALS.items() if (stats := found.get(tag)) and stats.sum is not None}
    cached, prompt = sums.get("total_usage_prompt_cache_read_tokens"), sums.get("total_usage_prompt_tokens")
    if cached is not None and prompt:
        sums["overall_usage_prompt_cache_read_pct"] = 100 * cached / prompt
    return sums


def _rates(succeeded: int, duration_s: float | None, scalars: dict[str, float]) -> dict[str, float]:
    """Everything per second, over the same window."""
    if duration_s is None:
        return {}
    found = {"benchmark_duration": duration_s}
    if not duration_s:
        return found
    found["request_throughput"] = succeeded / duration_s
    inputs, outputs = scalars.get("total_isl"), scalars.get("total_osl")
    if inputs is not None:
        found["input_token_throughput"] = inputs / duration_s
    if outputs is not None:
        found["output_token_throughput"] = outputs / duration_s
    if inputs is not None and outputs is not None:
        found["total_token_throughput"] = (inputs + outputs) / duration_s
    return found


def by_owner(groups: Iterable[ErrorGroup]) -> dict[str, int]:
    """How many failures each party caused."""
    found: dict[str, int] = {}
    for group in groups:
        found[group.owner] = found.get(group.owner, 0) + group.count
    return found
