"""The certificate of a run: verdicts on how far the client itself can have distorted the load and the measured values.

Checks of figures compare how far each headline figure can have moved (`metrics.bounds`) with a tolerance. Beyond it the figure
is DEGRADED: it is uncertain, as the reason says. Beyond the second, larger tolerance it is INVALID: do not rely on it. Checks
of the load compare a fact about the client or the requests with two limits in the same way. The worst check gives the verdict:
on the load, on each metric, and on the run, which is the worst of both.

A metric is UNOBSERVABLE if the tokens of most replies that were read in time were closer together than reads can tell apart.
Reports leave it out, and it does not count for the verdict of the run. A metric that late reads spoil is INVALID.

Everything is counted in the profiling phase only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from penstock.plural import counted, joined
from penstock.records.nodes import LoggedNode
from penstock.records.worker_report import WorkerReport
from penstock.wire.stats import LogHistogram

if TYPE_CHECKING:
    from penstock.metrics.bounds import FigureBounds, Unresolved

BoundsByMetric: TypeAlias = "Mapping[str, Mapping[str, FigureBounds]]"
"""Metric and statistic to the bounds of the figure."""

VERDICTS = ("VALID", "DEGRADED", "INVALID")
UNOBSERVABLE = "UNOBSERVABLE"
_SHORT_RUN_S = 0.25
"""Below this duration, shares of CPU time mean nothing."""
_CLIENT_ERRORS_LIMIT = 0.05
"""Above this share of requests that the client failed, the server saw a different load from the one requested."""
_CLOCK_ERROR_MS = 10.0
"""Error of a node's clock above which the order of requests over the cluster is uncertain."""
_ABSOLUTE_MS, _RELATIVE = 1.0, 0.05
"""A figure may have moved by the larger of the two. Ten times the first and five times the second make a run INVALID."""
_ABSOLUTE = {"inter_token_latency": 0.1, "time_per_output_token": 0.1, "effective_latency": 5.0}
"""Tolerances in ms of metrics that are usually much smaller, or that depend on lateness, where a few ms are usual."""
_LATENESS = ("effective_latency",)
"""The figures that count from the intended time, and so depend on when the client sent."""
_SAME = ("time_to_first_output_token",)
"""The same figure as `time_to_first_token` unless the model reasons: its reason is given once."""
_MINOR = ("time_to_second_token",)
"""A figure that one stall near the first token can move far; it never makes a run INVALID."""
_PER_USER = "output_token_throughput_per_user"
"""One divided by `inter_token_latency`."""
_CHUNK_GAPS = "inter_chunk_latency"
_JUDGED = (
    "time_to_first_token",
    "time_to_second_token",
    "time_to_first_output_token",
    "inter_token_latency",
    "time_per_output_token",
    "inter_chunk_latency",
    "request_latency",
    "effective_latency",
    "output_token_throughput_per_user",
    "e2e_output_token_throughput",
    "output_token_throughput",
    "input_token_throughput",
    "total_token_throughput",
    "request_throughput",
)
"""The metrics with a verdict of their own, in the order of their reasons."""
_UNRESOLVED_SHARE = 0.5
"""Above this share of the replies that were read in time, unresolved ones make a metric unobservable."""
_LEAST_IN_TIME = 0.1
"""Below this share, the replies that were read in time prove nothing about the others."""


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on the load, or on a metric."""

    verdict: str
    """`VALID`, `DEGRADED`, `INVALID` or, for a metric, `UNOBSERVABLE`."""
    reasons: list[str] = []


class Certificate(msgspec.Struct, frozen=True):
    verdict: str
    """`VALID`, `DEGRADED` or `INVALID`: the worst of the load and of the metrics that can be observed."""
    reasons: list[str]
    """One sentence per failed check; empty if VALID."""
    figures: dict[str, float | int | str | bool | None]
    summary: str = ""
    """The main figures in one line."""
    bounds: dict[str, dict[str, tuple[float, float]]] = {}
    """For each headline metric that is not exactly known, its statistics and where their true values lie."""
    nodes: list[NodeCertificate] = []
    """The checks of each node of a cluster."""
    load: Judgement | None = None
    """None in the files of earlier versions."""
    metrics: dict[str, Judgement] = {}
    """For each headline metric that the run has."""

    @property
    def unobservable(self) -> list[str]:
        """The metrics that are left out of headline figures."""
        return [tag for tag, judged in self.metrics.items() if judged.verdict == UNOBSERVABLE]

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason for which metrics are left out."""
        return list(dict.fromkeys(reason for tag in self.unobservable for reason in self.metrics[tag].reasons))

    def of(self, tag: str) -> str:
        """Return the verdict on a metric at this load."""
        if tag in self.unobservable:
            return UNOBSERVABLE
        return max((each.verdict for each in self._judgements(tag)), key=VERDICTS.index, default="VALID")

    def reasons_of(self, tag: str) -> list[str]:
        return [reason for each in self._judgements(tag) for reason in each.reasons]

    def _judgements(self, tag: str) -> list[Judgement]:
        return [each for each in (self.load, self.metrics.get(tag)) if each is not None]


class WorkerCertificate(msgspec.Struct, frozen=True):
    """The checks of the client for one worker of a node."""

    worker: int
    verdict: str
    reasons: list[str]
    figures: dict[str, float | int | str | bool | None]


class NodeCertificate(msgspec.Struct, frozen=True):
    """The checks of the client for the workers of one node, and the error of its clock."""

    node: str
    workers: list[int]
    verdict: str
    reasons: list[str]
    clock_offset_ms: float
    """Monotonic clock of the node minus that of the run, with which its times were converted."""
    clock_error_ms: float
    """Largest error of the offset, including its drift during the run."""
    by_worker: list[WorkerCertificate] = []
    """One for each worker that reported."""


class RequestCounts(NamedTuple):
    """Counts of the requests in the profiling phase, from which the metrics are computed."""

    completed: int = 0
    """Succeeded or failed."""
    succeeded: int = 0
    conversations: int = 0
    """Conversations that were started."""
    client_errors: int = 0
    """Requests that failed because of an error in the client."""
    streams: int = 0
    coalesced_first_stamps: int = 0
    """Streams whose first stamp covers several segments."""
    stamps: int = 0
    coalesced_stamps: int = 0
    wide_stamps: int = 0
    """Stamps whose content may have arrived more than 2 ms earlier."""


_NO_COUNTS = RequestCounts()
_WORKER_FIGURES = (
    "send_lateness_p50_ms",
    "send_lateness_p99_ms",
    "send_lateness_max_ms",
    "read_delay_p99_ms",
    "loop_stall_max_ms",
    "cpu_share",
    "run_queue_share",
)


class _Check(NamedTuple):
    value: float
    degraded: float
    invalid: float
    sentence: str
    metrics: Mapping[str, int] = {}
    """The metrics that the check is about, with their severities; none if it is about the load."""

    @property
    def severity(self) -> int:
        """0: passed, 1: DEGRADED, 2: INVALID."""
        return (self.value > self.degraded) + (self.value > self.invalid)


def certify(
    reports: Sequence[WorkerReport],
    requests: RequestCounts,
    bounds: BoundsByMetric,
    *,
    unresolved: Mapping[str, Unresolved] = {},
    metrics: Collection[str] = (),
    workers: int,
    open_loop: bool,
    concurrency: int | None = None,
    lost: Sequence[str] = (),
    resumed: Sequence[str] = (),
    nodes: Sequence[LoggedNode] = (),
    extra_checks: Sequence[tuple[int, str, *tuple[str, ...]]] = (),
) -> Certificate:
    """Check the bounds of the figures, the counts of the requests and the reports of the workers on the profiling phase. A
    missing report makes a run INVALID.

    `metrics` are those that the run has, and `unresolved` the replies whose tokens cannot be told apart.
    `lost` has a sentence for each worker that is known to have been lost, `resumed` one for each place where the run was
    resumed, which make it DEGRADED. `nodes` are those of a cluster.
    `extra_checks` are failed checks of the caller: a severity (1: DEGRADED, 2: INVALID), the reason, and the metrics that it is
    about, if it is not about the load.
    """
    if not reports:
        reasons = [*lost, "No worker reported: the run was cut short."]
        return Certificate("INVALID", reasons, {}, load=Judgement("INVALID", reasons))
    client = _Client(reports, requests)
    hidden = {tag: counts for tag, counts in unresolved.items() if _is_unobservable(counts)}
    checks = [
        *(_Check(1, 0, 0, sentence) for sentence in lost),
        *(_Check(1, 0, 1, sentence) for sentence in resumed),
        *_outcome_checks(requests, workers - len({r.worker for r in reports}) - len(lost), workers, concurrency),
        *_figure_checks({tag: figures for tag, figures in bounds.items() if tag not in hidden}),
        *_client_checks(client, open_loop),
        *(_clock_check(node) for node in nodes),
        *(
            _Check(severity, 0, 1, sentence, dict.fromkeys(tags, severity))
            for severity, sentence, *tags in extra_checks
        ),
    ]
    if "inter_token_latency" in hidden:
        checks = [check for check in checks if _CHUNK_GAPS not in check.metrics]
    failed = sorted((check for check in checks if check.severity), key=lambda check: -check.severity)
    worst = max((check.severity for check in failed), default=0)
    reasons = [check.sentence for check in failed]
    if reasons:
        reasons += _causes(client)
    return Certificate(
        VERDICTS[worst],
        reasons,
        client.figures(),
        client.summary(),
        {tag: {name: (f.low, f.high) for name, f in figures.items()} for tag, figures in bounds.items()},
        [_certify_node(node, reports, open_loop) for node in nodes],
        Judgement(*_verdict([check for check in checks if not check.metrics])),
        _judge_metrics([tag for tag in _JUDGED if tag in metrics], checks, hidden),
    )


def _judge_metrics(
    tags: Sequence[str], checks: Sequence[_Check], hidden: Mapping[str, Unresolved]
) -> dict[str, Judgement]:
    hidden_tags = [
        tag for tag in tags if tag in hidden or ("inter_token_latency" in hidden and tag in (_PER_USER, _CHUNK_GAPS))
    ]
    found = {}
    for tag in tags:
        own = [check for check in checks if check.metrics.get(tag)]
        worst = max((check.metrics[tag] for check in own), default=0)
        found[tag] = Judgement(VERDICTS[worst], [check.sentence for check in own])
    if hidden_tags:
        found |= dict.fromkeys(hidden_tags, Judgement(UNOBSERVABLE, [_unobservable_sentence(hidden_tags, hidden)]))
    return found


def _is_unobservable(counts: Unresolved) -> bool:
    """Return whether a client that is never late cannot tell the tokens of most replies apart."""
    known = counts.in_time > _LEAST_IN_TIME * (counts.in_time + counts.late)
    return known and counts.replies > _UNRESOLVED_SHARE * counts.in_time


def _unobservable_sentence(tags: Sequence[str], hidden: Mapping[str, Unresolved]) -> str:
    from penstock.metrics.catalogue import CATALOGUE

    most = max(hidden.values(), key=lambda counts: counts.replies / counts.in_time)
    in_time = " that were read in time" if most.late else ""
    return (
        f"{joined(CATALOGUE[tag].header for tag in tags)} cannot be observed: in {most.replies:,} of {most.in_time:,} replies"
        f"{in_time}, the tokens arrived closer together than reads can tell apart."
    )


def _certify_node(node: LoggedNode, reports: Sequence[WorkerReport], open_loop: bool) -> NodeCertificate:
    by_worker = {worker: [r for r in reports if r.worker == worker] for worker in node.workers}
    own = [report for found in by_worker.values() for report in found]
    checks = [_clock_check(node)]
    if missing := sum(not found for found in by_worker.values()):
        checks.append(_Check(1, 0, 0, f"{missing} of {counted(len(node.workers), 'worker')} did not report."))
    if own:
        checks += _client_checks(_Client(own), open_loop)
    return NodeCertificate(
        node.name,
        list(node.workers),
        *_verdict(checks),
        round(node.offset / 1e6, 6),
        round(_clock_error(node) / 1e6, 6),
        [_certify_worker(worker, found, open_loop) for worker, found in by_worker.items() if found],
    )


def _certify_worker(worker: int, reports: Sequence[WorkerReport], open_loop: bool) -> WorkerCertificate:
    client = _Client(reports)
    verdict, reasons = _verdict(list(_client_checks(client, open_loop)))
    figures = client.figures()
    own = {name: figures[name] for name in _WORKER_FIGURES}
    return WorkerCertificate(worker, verdict, reasons, {"requests": sum(r.requests for r in reports), **own})


def _verdict(checks: Sequence[_Check]) -> tuple[str, list[str]]:
    worst = max((check.severity for check in checks), default=0)
    return VERDICTS[worst], [check.sentence for check in checks if check.severity]


def _clock_error(node: LoggedNode) -> int:
    return node.error + abs(node.drift or 0)


def _clock_check(node: LoggedNode) -> _Check:
    error_ms = _clock_error(node) / 1e6
    sentence = (
        f"The clock of node {node.name} is known only to {error_ms:.1f} ms, so the times of its requests may be shifted "
        "against those of other nodes by that; latencies are not affected."
    )
    return _Check(error_ms, _CLOCK_ERROR_MS, 1e12, sentence)


class _Client:
    """The reports of workers, merged, with the counts of the requests if they are those of all workers."""

    def __init__(self, reports: Sequence[WorkerReport], requests: RequestCounts = _NO_COUNTS) -> None:
        self.requests = requests
        self.reads = sum(r.wire_stats.reads for r in reports)
        self.stamped_reads = sum(r.wire_stats.stamped for r in reports)
        self.idle_workers = sum(r.wire_stats.reads == 0 for r in reports)
        self.stale_connections = sum(r.wire_stats.stale for r in reports)
        self.connections = sum(r.wire_stats.connects for r in reports)
        self.clock_steps = max(r.clock_steps for r in reports)
        self.read_delay = _merged([r.wire_stats.delay for r in reports])
        self.connect_time = _merged([r.wire_stats.connect for r in reports])
        self.lateness = _merged([r.lateness for r in reports])
        self.queued = _merged([r.queued for r in reports])
        self.stalls = _merged([r.stalls for r in reports])
        self.latency = _merged([r.latency for r in reports])
        self.cpu_share = max(_share(r.machine.cpu_s, r.machine.wall_s) for r in reports)
        self.held_share = max(_share(r.held_ns / 1e9, r.machine.wall_s) for r in reports)
        self.run_queue_share = max(_share(r.machine.run_delay_s, r.machine.wall_s) for r in reports)
        self.throttled_share = max(_share(r.machine.throttled_s, r.machine.wall_s) for r in reports)
        self.steal_share = max(_share(r.machine.steal_s, r.machine.wall_s) for r in reports)
        self.file_waits = sum(r.starved_ticks for r in reports)
        self.refusals_waited_s = round(sum(r.refusals_waited_ns for r in reports) / 1e9, 3)
        self.idle_share = _share(self.lateness.mean, self.lateness.mean + self.latency.mean)
        """Share of a closed loop's time in which a free slot waited for the client to fill it."""
        self.wall_s = max(r.machine.wall_s for r in reports)

    @property
    def coalesced_share(self) -> float:
        return _share(self.requests.coalesced_stamps, self.requests.stamps)

    @property
    def kernel_stamps(self) -> bool:
        return self.reads > 0 and self.stamped_reads >= 0.99 * self.reads

    def summary(self) -> str:
        if not self.reads:
            return "nothing was received"
        if self.kernel_stamps:
            parts = [f"kernel timestamps, read {_ms(self.read_delay.quantile(0.99)):g} ms (p99) after arrival"]
        else:
            parts = ["user-space timestamps, taken when read"]
        parts.append(f"requests sent {_ms(self.lateness.quantile(0.99)):g} ms (p99) late")
        if self.requests.stamps:
            parts.append(f"{self.coalesced_share:.1%} of timestamps cover several segments")
        parts.append(f"{self.cpu_share:.0%} of a core used")
        if self.stale_connections:
            parts.append(f"{self.stale_connections:,} sent again on a new connection")
        return "; ".join(parts)

    def figures(self) -> dict[str, float | int | str | bool | None]:
        return {
            "stamps": "kernel" if self.kernel_stamps else "user space",
            "reads": self.reads,
            "reads_with_kernel_stamp": self.stamped_reads,
            "read_delay_p50_ms": _ms(self.read_delay.quantile(0.5)),
            "read_delay_p99_ms": _ms(self.read_delay.quantile(0.99)),
            "read_delay_max_ms": _ms(self.read_delay.largest),
            "send_lateness_p50_ms": _ms(self.lateness.quantile(0.5)),
            "send_lateness_p99_ms": _ms(self.lateness.quantile(0.99)),
            "send_lateness_max_ms": _ms(self.lateness.largest),
            "slots_idle_share": round(self.idle_share, 4),
            "waits_for_the_input_file": self.file_waits,
            "requests_queued_for_a_slot": self.queued.n,
            "queued_p99_ms": _ms(self.queued.quantile(0.99)),
            "content_stamps": self.requests.stamps,
            "coalesced_stamps": self.requests.coalesced_stamps,
            "streams": self.requests.streams,
            "coalesced_first_stamps": self.requests.coalesced_first_stamps,
            "loop_stall_p99_ms": _ms(self.stalls.quantile(0.99)),
            "loop_stall_max_ms": _ms(self.stalls.largest),
            "cpu_share": round(self.cpu_share, 4),
            "sending_held_share": round(self.held_share, 4),
            "run_queue_share": round(self.run_queue_share, 4),
            "throttled_share": round(self.throttled_share, 4),
            "steal_share": round(self.steal_share, 4),
            "clock_steps": self.clock_steps,
            "connections_opened": self.connections,
            "connect_p50_ms": _ms(self.connect_time.quantile(0.5)),
            "connect_max_ms": _ms(self.connect_time.largest),
            "stale_connections": self.stale_connections,
            "refusals_waited_s": self.refusals_waited_s,
        }


def _outcome_checks(requests: RequestCounts, missing: int, workers: int, concurrency: int | None) -> Iterator[_Check]:
    yield _Check(missing, 0, 0, f"{missing} of {workers} workers did not report (killed or crashed).")
    yield _Check(requests.succeeded == 0, 0, 0, "No request succeeded, so there is nothing to certify.")
    share = _share(requests.client_errors, requests.completed)
    sentence = (
        f"{requests.client_errors:,} of {requests.completed:,} requests failed because of an error in the client, not in "
        "the server: see the failures with fault 'penstock'."
    )
    yield _Check(share, 0, _CLIENT_ERRORS_LIMIT, sentence)
    failed = requests.completed - requests.succeeded - requests.client_errors
    sentence = (
        f"{failed:,} of {counted(requests.completed, 'request')} failed: latencies and token counts cover only the "
        f"{requests.succeeded:,} that succeeded."
    )
    yield _Check(_share(failed, requests.completed) if requests.succeeded else 0, 0.05, 0.5, sentence)
    if concurrency is not None and requests.conversations < concurrency:
        sentence = (
            f"The concurrency of {concurrency:,} was never reached: the run had only "
            f"{counted(requests.conversations, 'conversation')}."
        )
        yield _Check(1, 0, 2, sentence)


def _severity(tag: str, figures: Mapping[str, FigureBounds]) -> tuple[int, str]:
    """Compare how far the statistics of a metric can have moved with their tolerances. Return the severity, and the statistic
    that can have moved farthest."""
    absolute = _ABSOLUTE.get(tag, _ABSOLUTE_MS)
    severity = 0
    for figure in figures.values():
        degraded = figure.shift > max(absolute, _RELATIVE * figure.value)
        invalid = figure.shift > max(10 * absolute, 5 * _RELATIVE * figure.value) and tag not in _MINOR
        severity = max(severity, degraded + invalid)
    name, worst = max(figures.items(), key=lambda item: item[1].shift / max(absolute, _RELATIVE * item[1].value))
    return severity, f"{name} {worst.value:.2f} [{worst.low:.2f}–{worst.high:.2f}]"


def _figure_checks(bounds: BoundsByMetric) -> Iterator[_Check]:
    """Yield the check of all metrics, because their reason is the same."""
    from penstock.metrics.catalogue import CATALOGUE  # not above: the dashboard would import NumPy

    severities: dict[str, int] = {}
    texts = []
    for tag, figures in bounds.items():
        severity, worst = _severity(tag, figures)
        if not severity:
            continue
        severities[tag] = severity
        if tag == "inter_token_latency":
            severities[_PER_USER] = severity
        if tag not in _SAME or figures != bounds.get("time_to_first_token"):
            invalid = " (INVALID)" if severity == 2 else ""
            texts.append(f"{CATALOGUE[tag].header}{invalid} {worst} {CATALOGUE[tag].unit}")
    late = "sent requests late, " if any(tag in severities for tag in _LATENESS) else ""
    sentence = (
        f"The client {late}read several network segments at once, or was slow to send, so the true values are uncertain: "
        f"{'; '.join(texts)}."
    )
    yield _Check(max(severities.values(), default=0), 0, 1, sentence, severities)


def _client_checks(client: _Client, open_loop: bool) -> Iterator[_Check]:
    if client.kernel_stamps:
        steps = client.clock_steps
        sentence = (
            f"The wall clock was set {counted(steps, 'time')} during the run, which shifts kernel timestamps near it."
        )
        yield _Check(steps, 0, 0, sentence)
    share = _share(client.requests.wide_stamps, client.requests.stamps)
    sentence = (
        f"{share:.1%} of the content timestamps cover segments that may have arrived more than 2 ms apart, so the gaps "
        "between chunks are imprecise."
    )
    yield _Check(share, 0.05, 2.0, sentence, {_CHUNK_GAPS: int(share > 0.05)})
    sentence = "Sending waited for the input file to be read, so the load was lower than requested."
    yield _Check(client.file_waits, 0, 1e12, sentence)
    if client.wall_s < _SHORT_RUN_S:
        return
    sentence = (
        f"The client used {client.cpu_share:.0%} of its CPU core, so the throughput is the client's limit, not the "
        "server's; use --workers-max to spread the load over more cores."
    )
    yield _Check(client.cpu_share, 0.92, 2.0, sentence)
    sentence = (
        "Replies arrived faster than the client could process them: it sent no new requests for "
        f"{client.held_share:.0%} of the time."
    )
    yield _Check(client.held_share, 0.01, 2.0, sentence)
    if not open_loop:
        sentence = (
            f"Slots stayed empty for {client.idle_share:.1%} of the time, so the concurrency was lower than requested."
        )
        yield _Check(client.idle_share, 0.05, 0.5, sentence)
    if client.reads:
        yield _Check(client.idle_workers > 0, 0, 2, f"{counted(client.idle_workers, 'worker')} received nothing.")


def _causes(client: _Client) -> Iterator[str]:
    """Yield what kept the client from its work. This explains a verdict but does not decide it: what it did to the figures is
    in their bounds."""
    for share, limit, cause in (
        (client.throttled_share, 0.01, "The container's CPU quota stopped the client"),
        (client.steal_share, 0.05, "The hypervisor took the CPU away"),
        (client.run_queue_share, 0.10, "The client was ready to run but had no CPU core"),
    ):
        if share > limit:
            yield f"{cause} for {share:.1%} of the time."


def _merged(histograms: Sequence[LogHistogram]) -> LogHistogram:
    merged = LogHistogram()
    for histogram in histograms:
        merged.merge(histogram)
    return merged


def _share(part: float | None, whole: float) -> float:
    return part / whole if part and whole > 0 else 0.0


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3)
