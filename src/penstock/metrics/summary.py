"""The summary of a run: the metrics of its phases, its failures and notes. `PhaseStats` computes the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.bounds import FigureBounds, Unresolved
from penstock.metrics.branches import BranchCounter, BranchStats
from penstock.metrics.certificate import Certificate, RequestCounts
from penstock.metrics.gap_profile import GapProfile, GapProfileBuilder
from penstock.metrics.objectives import parse_objectives
from penstock.metrics.outages import outage_notes
from penstock.metrics.overload import Overload, find_overload
from penstock.metrics.phase_stats import ErrorGroup, PhaseStats
from penstock.metrics.prompt_reuse import ReuseCounter, ReuseSummary
from penstock.metrics.reply_checks import ReplyChecks
from penstock.metrics.request_series import Intervals, intervals
from penstock.metrics.silences import silence_notes
from penstock.metrics.slices import Slice, SliceBuilder
from penstock.metrics.statistics import Stats, Values
from penstock.metrics.steady_state import (
    Censored,
    SteadyState,
    censored,
    steady_state,
    steady_window,
    with_rates,
)
from penstock.metrics.token_agreement import TokenAgreement, TokenTotals
from penstock.processes import in_background
from penstock.records.header import RunHeader
from penstock.records.log import RunLog
from penstock.records.payloads import PayloadStore
from penstock.records.record import Record
from penstock.records.root_hash import RootHash, schedule_keys
from penstock.records.section import Damage
from penstock.scratch import Scratch
from penstock.telemetry.gpu import GpuTelemetry
from penstock.telemetry.network import NetworkLatency
from penstock.telemetry.server_metrics import ServerMetrics


class TokenizerNote(msgspec.Struct, frozen=True):
    """The tokenizer that counted. `name` is None if the server counted or nothing was counted; `note` then says so."""

    name: str | None
    source: str | None
    note: str | None = None


class Proof(msgspec.Struct, frozen=True):
    """A hash over everything that was sent."""

    requests: int
    """Requests whose bodies were handed to a socket, including the warmup."""
    root: str
    """SHA-256 over the SHA-256 digests of the bodies, in the order of the schedule: phase, session, turn."""


class PhaseSummary(msgspec.Struct, frozen=True):
    """The results of the warmup or of profiling."""

    index: int
    name: str
    kind: str
    start_ns: int
    end_ns: int
    """First start and last end, in Unix nanoseconds."""
    metrics: dict[str, Stats]
    errors: list[ErrorGroup]
    succeeded: int
    failed: int


class Gap(msgspec.Struct, frozen=True):
    """A time between the end of a run and its continuation."""

    start_ns: int
    end_ns: int
    """In Unix nanoseconds."""
    restarted_conversations: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Summary(msgspec.Struct, kw_only=True):
    metrics: dict[str, Stats]
    """Metrics of the profiling phases, in the order of the catalogue."""
    warmup_metrics: dict[str, Stats] | None
    """None if the warmup sent nothing."""
    gaps: list[Gap] = []
    """Times in which nothing was sent because the run had ended and was resumed. They are no part of any figure."""
    phases: list[PhaseSummary] = []
    """The warmup and profiling, if both sent requests."""
    slices: list[Slice] = []
    """Parts of the time of the profiling phases, if they were asked for."""
    compared_values: Any = ()
    """The values of the metric whose distribution decides when to stop repeating runs, for the requests of the profiling
    phases; empty without such a rule."""
    errors: list[ErrorGroup]
    """Failures of the profiling phases, most frequent first."""
    warmup_errors: list[ErrorGroup]
    succeeded: int
    failed: int
    cancelled: int
    warmup_requests: int
    title: str = "LLM Metrics"
    """Title of the table of metrics."""
    queued: int = 0
    """Requests that waited for a free slot."""
    longest_queued_ms: float = 0.0
    without_usage: int = 0
    """Successful replies without usage."""
    finish_reasons: dict[str, int]
    """Number of choices by finish reason, most frequent first."""
    warnings: dict[str, int] = {}
    """Irregularities in replies that did not fail the request, most frequent first."""
    broken_conversations: int = 0
    """Conversations whose later turns were not sent because a turn failed."""
    branch_stats: dict[str, BranchStats] = {}
    """The branches of the trees of conversations, by the kind of the phase; empty if no conversation can start others."""
    start_ns: int
    end_ns: int
    """First start and last end in the profiling phases, in Unix nanoseconds."""
    tokenizer: TokenizerNote
    token_agreement: TokenAgreement | None = None
    """None unless server and client both counted."""
    prompt_reuse: ReuseSummary | None = None
    """None if the prompts were not compared."""
    reply_notes: list[str] = []
    """Sentences about replies whose form makes metrics misleading, and about times without replies."""
    was_cancelled: bool = False
    incomplete_reason: str | None = None
    damage: Damage = msgspec.field(default_factory=Damage)
    """What could not be read of the log."""
    certificate: Certificate | None = None
    bounds: dict[str, dict[str, FigureBounds]] = {}
    """The headline figures that are not exactly known, by metric and statistic."""
    unresolved: dict[str, Unresolved] = {}
    """How many replies have tokens that reads cannot tell apart, by metric."""
    intervals: Intervals = {}
    """Confidence intervals of the metrics of the profiling phases."""
    steady_state: SteadyState | None = None
    """None if there are too few requests to find it."""
    overload: Overload | None = None
    """The load, if the requests of an open loop came faster than the server answered them."""
    ended_by_overload: bool = False
    """True if that ended the run (`--stop-on-overload`)."""
    censored: Censored | None = None
    """The requests that the end of the run cut off; None if there are none."""
    gap_profile: GapProfile | None = None
    """Gaps by the position of the token; None if nothing was streamed."""
    until: dict[str, Any] | None = None
    """The outcome of a target precision; None without one."""
    proof: Proof | None = None
    note: str | None = None
    """A note about the files."""
    streaming_hint: str | None = None
    """What would show the time to first token; None if it is known, or if replies cannot be streamed."""
    server_metrics: ServerMetrics | None = None
    """None if nothing was scraped during the load."""
    server_readings: ServerMetrics | None = None
    """The servers' metrics, read before and after the load only."""
    gpu_telemetry: GpuTelemetry | None = None
    """None if no GPU was observed."""
    network: NetworkLatency | None = None
    """The round trip to the servers, if it was asked for."""

    @property
    def is_complete(self) -> bool:
        return self.incomplete_reason is None and not self.was_cancelled


_NOT_STREAMED = (
    "Replies that were not streamed although --streaming was given, so that they have no time to first token"
)


_LARGE = 50_000, 4_000_000
"""Numbers of successful requests whose intervals are computed at the same time as the statistics. Those of more would take too
much memory together."""


class SummaryBuilder:
    """Builds the summary. Takes every record of a run once, in any order."""

    def __init__(self, log: RunLog, payloads: PayloadStore, scratch: Scratch) -> None:
        self.damage = Damage()
        """What could not be read of the log."""
        self._log = log
        self._payloads = payloads
        self._header = header = log.header
        stats = partial(
            PhaseStats,
            scratch,
            scheduled=header.settings.load.recorded is not None,
            objectives=parse_objectives(header.settings.goodput),
        )
        self._profiling = stats(with_series=True)
        self._slices: SliceBuilder | None = None
        if length_s := header.settings.output.slice_s:
            self._slices = SliceBuilder(scratch, length_s, partial(stats, with_timeline=False))
        self._warmup = PhaseStats(scratch)
        self._phases = [self._warmup if p.kind == "warmup" else self._profiling for p in log.phases]
        self._token_totals = TokenTotals()
        self._reply_checks = ReplyChecks(header)
        self._root = RootHash(scratch)
        self._gap_profile = GapProfileBuilder()
        self._broken_conversations = 0
        self._branches = {kind: BranchCounter() for kind in ("warmup", "profiling")} if payloads.has_trees else {}
        self._reuse = ReuseCounter()
        self._gaps = [(gap.begin, gap.end) for gap in log.resumes]

    def _before(self, at: int) -> int:
        """Return the length of the gaps before a time: the statistics count time without them."""
        return sum(end - begin for begin, end in self._gaps if end <= at)

    def _wall(self, at: int) -> int:
        """Return the Unix time of a time that was counted without gaps."""
        for begin, end in self._gaps:
            if at > begin:
                at += end - begin
        return self._header.epoch_wall_ns + at

    def add(self, batch: Batch, table: MeasureTable) -> None:
        if self._gaps:
            batch = Batch([_shifted(record, self._before(record.start)) for record in batch.records])
        records = batch.records
        phase = self._phases[records[0].phase]
        profiling = phase is self._profiling
        phase.add_batch(batch, table)
        self._reuse.add(batch, profiling=profiling)
        digests = [record.digest for record in records]
        keys = schedule_keys(records[0].phase, batch.get("number").astype(np.int64), batch.turn.astype(np.int64))
        self._root.add_many(keys[np.fromiter(map(bool, digests), np.bool_, len(digests))], digests)
        self._broken_conversations += sum(self._ended_early(records[index]) for index in np.flatnonzero(batch.failed))
        if self._branches:
            counter = self._branches["profiling" if profiling else "warmup"]
            for record in records:
                counter.add(record, self._payloads)
        if self._header.settings.endpoint.streaming and (count := int((batch.succeeded & ~batch.streamed).sum())):
            phase.warnings[_NOT_STREAMED] += count
        if not profiling:
            return
        if self._slices is not None:
            for record, measures in zip(records, table.rows, strict=True):
                self._slices.add(record, measures)
        self._reply_checks.add(batch, table)
        self._gap_profile.add(batch, table)
        if not self._header.settings.endpoint.server_token_count:
            self._token_totals.add(batch, table)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another builder for the same log needs to `merge` this one."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_log", "_header", "_payloads")}

    def merge(self, other: SummaryBuilder) -> None:
        """Add the records that another builder took, which is not used any more."""
        self.damage.add(other.damage)
        self._broken_conversations += other._broken_conversations
        for kind, counter in self._branches.items():
            counter.merge(other._branches[kind], self._payloads)
        self._profiling.merge(other._profiling)
        self._warmup.merge(other._warmup)
        if self._slices is not None and other._slices is not None:
            self._slices.merge(other._slices)
        self._token_totals.merge(other._token_totals)
        self._reply_checks.merge(other._reply_checks)
        self._root.merge(other._root)
        self._gap_profile.merge(other._gap_profile)
        self._reuse.merge(other._reuse)

    def _ended_early(self, record: Record) -> bool:
        """Return whether this failed turn ended its conversation before the last turn."""
        return record.built is not None and record.turn < self._payloads.last_turn(record.conversation, record.turn)

    def request_counts(self) -> RequestCounts:
        """Return the counts of the profiling phases for the certificate."""
        return self._profiling.request_counts()

    def summary(self, tokenizer: TokenizerNote, processes: int = 1) -> Summary:
        """Return the summary, without a certificate. Call this once, after the last record of the log. With several processes,
        a part of a large one is computed in a child."""
        profiling, warmup = self._profiling, self._warmup
        warmup_requests = warmup.counts.succeeded + warmup.counts.failed + warmup.counts.cancelled
        first, last = profiling.span or (0, 0)
        is_large = processes > 1 and _LARGE[0] <= profiling.counts.succeeded <= _LARGE[1]
        from_series = in_background(self._from_series) if is_large else self._from_series
        metrics = profiling.metrics()
        warmup_metrics = warmup.metrics() if warmup_requests else None
        summary = Summary(
            metrics=metrics,
            warmup_metrics=warmup_metrics,
            phases=[] if warmup_metrics is None else list(self._phase_summaries(warmup_metrics, metrics)),
            slices=self._sliced(),
            compared_values=self._compared_values(),
            bounds=profiling.bounds(),
            unresolved=profiling.unresolved(),
            errors=profiling.errors(),
            warmup_errors=warmup.errors(),
            succeeded=profiling.counts.succeeded,
            failed=profiling.counts.failed,
            cancelled=profiling.counts.cancelled,
            warmup_requests=warmup_requests,
            title=self._header.declaration.title,
            streaming_hint=_streaming_hint(self._header),
            queued=profiling.counts.queued,
            longest_queued_ms=profiling.longest_queued_ns / 1e6,
            without_usage=profiling.counts.without_usage,
            finish_reasons=_most_frequent_first(profiling.finish_reasons),
            broken_conversations=self._broken_conversations,
            branch_stats=self._branch_stats(with_warmup=warmup_requests > 0),
            warnings=_most_frequent_first(profiling.warnings),
            start_ns=self._wall(first),
            end_ns=self._wall(last),
            gaps=[
                Gap(self._header.epoch_wall_ns + gap.begin, self._header.epoch_wall_ns + gap.end, gap.conversations)
                for gap in self._log.resumes
            ],
            tokenizer=tokenizer,
            token_agreement=self._token_totals.agreement(),
            prompt_reuse=self._reuse.summary(self._header, self._payloads),
            gap_profile=self._gap_profile.result(),
            damage=self.damage,
            proof=Proof(self._root.requests, self._root.root()),
            **from_series(),
        )
        summary.intervals = with_rates(summary.intervals, metrics)
        return summary

    def _branch_stats(self, *, with_warmup: bool) -> dict[str, BranchStats]:
        kinds = ("warmup", "profiling") if with_warmup else ("profiling",)
        return {kind: self._branches[kind].stats(self._payloads) for kind in kinds if self._branches}

    def _compared_values(self) -> Values:
        experiment = self._header.settings.experiment
        by_distribution = experiment.convergence_metric if experiment.convergence_mode == "distribution" else None
        return np.empty(0) if by_distribution is None else self._profiling.values(by_distribution)

    def _from_series(self) -> dict[str, Any]:
        """Return the fields that depend on the order of the requests of the profiling phases: how well their figures are known,
        and notes about times without replies."""
        table, span = self._profiling.series(), self._profiling.span
        notes = self._reply_checks.notes()
        if table is None or span is None:
            return {"reply_notes": notes}
        notes += [*outage_notes(table, span[0]), *silence_notes(table, span[0])]
        if span[0] >= span[1]:
            return {"reply_notes": notes}
        phases = [phase for phase in self._log.covered_phases if phase.kind == "profiling"]
        open_loop = any(phase.open_loop for phase in phases)
        window = steady_window(table, open_loop=open_loop)
        steady = None
        if window is not None:
            (over_time,) = self._profiling.over_time([window])
            steady = steady_state(table, window, over_time)
        cancelled_on_purpose = any(phase.load.get("cancellation") for phase in phases)
        return {
            "reply_notes": notes,
            "intervals": intervals(table, span, whole=True),
            "steady_state": steady,
            "overload": find_overload(table.column("intended"), table.ends) if open_loop else None,
            "censored": None if cancelled_on_purpose else censored(table),
        }

    def _phase_summaries(self, warmup_metrics: dict[str, Stats], metrics: dict[str, Stats]) -> Iterator[PhaseSummary]:
        for kind, stats, values in (
            ("warmup", self._warmup, warmup_metrics),
            ("profiling", self._profiling, metrics),
        ):
            phase = next((phase for phase in self._log.phases if phase.kind == kind), None)
            if phase is not None and stats.span is not None:
                first, last = stats.span
                yield PhaseSummary(
                    index=phase.index,
                    name=phase.name,
                    kind=kind,
                    start_ns=self._wall(first),
                    end_ns=self._wall(last),
                    metrics=values,
                    errors=stats.errors(),
                    succeeded=stats.counts.succeeded,
                    failed=stats.counts.failed,
                )

    def _sliced(self) -> list[Slice]:
        if self._slices is None or self._profiling.span is None:
            return []
        return list(self._slices.slices(self._profiling.span, self._profiling.over_time))


def _streaming_hint(header: RunHeader) -> str | None:
    declared = header.declaration
    if header.settings.endpoint.streaming or header.payload_files or not (declared.streams and declared.output_tokens):
        return None
    return "The replies were not streamed: --streaming measures the time to first token and the time between tokens."


def _shifted(record: Record, by: int) -> Record:
    """Return the record with its times moved to `by` ns earlier."""
    if not by:
        return record
    times = {name: getattr(record, name) for name in ("intended", "issued", "start", "end", "sent", "first_byte")}
    return msgspec.structs.replace(record, **{name: at - by for name, at in times.items() if at is not None})


def _most_frequent_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
