"""The certificate of a run: a verdict on how far the client itself can have distorted the measured values.

A check compares one value with two limits. Above the first limit the run is DEGRADED: the measurements named in the reason are
off by at most that much, the others are correct. Above the second limit it is INVALID: do not rely on this run. The
worst check gives the verdict.

Requests and stamps are counted in the profiling phase only. Delays, stalls, clock steps and CPU time come from the workers'
reports, which cover the time from their first request to their last and so include the warmup.

With kernel stamps, a late read does not change the measured time unless it covers several segments: then only the arrival
of the newest segment is known. The read delay therefore matters only together with the share of such stamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.plural import counted
from penstock.records.worker_report import WorkerReport
from penstock.wire.stats import LogHistogram

__all__ = ["Certificate", "RequestCounts", "certify"]

VERDICTS = ("VALID", "DEGRADED", "INVALID")
_SHORT_RUN_S = 0.25
"""Below this duration, shares of CPU time mean nothing."""
_CLIENT_ERRORS_LIMIT = 0.05
"""Above this share of requests that the client failed, the server saw a different load from the one requested."""


class Certificate(msgspec.Struct, frozen=True):
    verdict: str
    """`VALID`, `DEGRADED` or `INVALID`."""
    reasons: list[str]
    """One sentence per failed check; empty if VALID."""
    figures: dict[str, float | int | str | bool | None]
    summary: str = ""
    """The main figures in one line."""


class RequestCounts(NamedTuple):
    """Counts of the requests in the profiling phase, from which the metrics are computed."""

    completed: int = 0
    """Succeeded or failed."""
    succeeded: int = 0
    client_errors: int = 0
    """Requests that failed because of an error in the client."""
    streams: int = 0
    coalesced_first_stamps: int = 0
    """Streams whose first stamp covers several segments."""
    stamps: int = 0
    coalesced_stamps: int = 0


class _Check(NamedTuple):
    value: float
    degraded: float
    invalid: float
    sentence: str

    @property
    def level(self) -> int:
        return (self.value > self.degraded) + (self.value > self.invalid)


def certify(
    reports: Sequence[WorkerReport],
    requests: RequestCounts,
    *,
    workers: int,
    open_loop: bool,
    extra_checks: Sequence[tuple[int, str]] = (),
) -> Certificate:
    """Check the reports of the workers and the counts of their requests. A missing report makes a run INVALID.

    `extra_checks` are failed checks of the caller: a level (1: DEGRADED, 2: INVALID) and the reason.
    """
    if not reports:
        return Certificate("INVALID", ["No worker reported: the run was cut short."], {})
    client = _Client(reports, requests)
    checks = [
        *_outcome_checks(requests, workers - len(reports), workers),
        *_client_checks(client, open_loop),
        *(_Check(level, 0, 1, sentence) for level, sentence in extra_checks),
    ]
    failed = [check for check in checks if check.level]
    failed.sort(key=lambda check: -check.level)
    worst = max((check.level for check in failed), default=0)
    return Certificate(VERDICTS[worst], [check.sentence for check in failed], client.figures(), client.summary())


class _Client:
    """The reports of all workers, merged, with the counts of their requests."""

    def __init__(self, reports: Sequence[WorkerReport], requests: RequestCounts) -> None:
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
        self.ttft = _merged([r.ttft for r in reports])
        self.latency = _merged([r.latency for r in reports])
        self.cpu_share = max(_share(r.machine.cpu_s, r.machine.wall_s) for r in reports)
        self.held_share = max(_share(r.held_ns / 1e9, r.machine.wall_s) for r in reports)
        self.run_queue_share = max(_share(r.machine.run_delay_s, r.machine.wall_s) for r in reports)
        self.throttled_share = max(_share(r.machine.throttled_s, r.machine.wall_s) for r in reports)
        self.steal_share = max(_share(r.machine.steal_s, r.machine.wall_s) for r in reports)
        self.file_waits = sum(r.starved_ticks for r in reports)
        self.idle_share = _share(self.lateness.mean, self.lateness.mean + self.latency.mean)
        """Share of a closed loop's time in which a free slot waited for the client to fill it."""
        self.wall_s = max(r.machine.wall_s for r in reports)

    @property
    def coalesced_first_share(self) -> float:
        return _share(self.requests.coalesced_first_stamps, self.requests.streams)

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
        }


def _outcome_checks(requests: RequestCounts, missing: int, workers: int) -> Iterator[_Check]:
    yield _Check(missing, 0, 0, f"{missing} of {workers} workers did not report (killed or crashed).")
    yield _Check(requests.succeeded == 0, 0, 0, "No request succeeded, so there is nothing to certify.")
    share = _share(requests.client_errors, requests.completed)
    sentence = (
        f"{requests.client_errors:,} of {requests.completed:,} requests failed because of an error in the client, not in "
        "the server: see the failures with fault 'penstock'."
    )
    yield _Check(share, 0, _CLIENT_ERRORS_LIMIT, sentence)


def _client_checks(client: _Client, open_loop: bool) -> Iterator[_Check]:
    ttft = client.ttft.quantile(0.5) or client.latency.quantile(0.5)
    if client.kernel_stamps:
        yield from _kernel_stamp_checks(client, ttft)
    elif client.reads:
        stall = client.stalls.quantile(0.99)
        sentence = f"Timestamps are taken in user space, and the event loop was up to {_ms(stall)} ms (p99) late."
        yield _Check(stall, max(1.5e6, 0.05 * ttft), max(10e6, 0.25 * ttft), sentence)
    if open_loop:
        late = client.lateness.quantile(0.99)
        sentence = f"Requests were sent up to {_ms(late)} ms (p99) later than scheduled."
        yield _Check(late, max(1e6, 0.05 * ttft), max(20e6, 0.25 * ttft), sentence)
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
    for share, degraded, invalid, cause in (
        (client.throttled_share, 0.01, 0.10, "The container's CPU quota stopped the client"),
        (client.steal_share, 0.05, 0.25, "The hypervisor took the CPU away"),
        (client.run_queue_share, 0.10, 0.50, "The client was ready to run but had no CPU core"),
    ):
        yield _Check(share, degraded, invalid, f"{cause} for {share:.1%} of the time.")
    if client.reads:
        yield _Check(client.idle_workers > 0, 0, 2, f"{counted(client.idle_workers, 'worker')} received nothing.")


def _kernel_stamp_checks(client: _Client, ttft: float) -> Iterator[_Check]:
    steps = client.clock_steps
    sentence = (
        f"The wall clock was set {counted(steps, 'time')} during the run, which shifts kernel timestamps near it."
    )
    yield _Check(steps, 0, 0, sentence)
    delay = client.read_delay.quantile(0.99)
    share = client.coalesced_first_share
    sentence = (
        f"{share:.1%} of the TTFTs are upper bounds: the first read covered several network segments, which waited up to "
        f"{_ms(delay)} ms (p99) to be read."
    )
    yield _Check(share if delay > max(1e6, 0.02 * ttft) else 0, 0.01, 0.10, sentence)
    share = client.coalesced_share
    sentence = f"{share:.1%} of the content timestamps cover several segments, so gaps between tokens are imprecise."
    yield _Check(share if delay > 1e6 else 0, 0.05, 0.25, sentence)
    sentence = f"The event loop stalled for up to {_ms(client.stalls.largest)} ms."
    yield _Check(client.stalls.quantile(0.99), 50e6, 1e9, sentence)


def _merged(histograms: Sequence[LogHistogram]) -> LogHistogram:
    merged = LogHistogram()
    for histogram in histograms:
        merged.merge(histogram)
    return merged


def _share(part: float | None, whole: float) -> float:
    return part / whole if part and whole > 0 else 0.0


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3)
