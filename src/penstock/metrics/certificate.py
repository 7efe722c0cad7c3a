"""How far the client itself can have distorted the figures of a run, and whether they can be vouched for.

A check compares one fact with two limits: past the first the run is DEGRADED (the figures named in the sentence are off by
that much at worst, the rest stand), past the second INVALID (do not decide by this run). The worst check is the verdict.

What is counted in requests and stamps is that of the profiling phase, which the figures are made of. Delays, stalls, clocks and
CPU time are those of the workers from their first request to their last, warmup included: they are not told apart there.

With kernel stamps a late read does not move a time, unless it covered several segments: then only the newest one's arrival
is known. So the delay of our reads counts only together with the share of stamps that cover several segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.records.worker_report import WorkerReport
from penstock.wire.stats import LogHistogram

__all__ = ["Certificate", "Measured", "certify"]

VERDICTS = ("VALID", "DEGRADED", "INVALID")
_SHORT_S = 0.25  # below this, shares of CPU time say nothing
_OWN_FAULTS = 0.05
"""Beyond this share of requests that we failed ourselves, the server saw another load than the one asked for."""


class Certificate(msgspec.Struct, frozen=True):
    verdict: str
    """`VALID`, `DEGRADED` or `INVALID`."""
    reasons: list[str]
    """One sentence each; empty when VALID."""
    figures: dict[str, float | int | str | bool | None]
    summary: str = ""
    """What was found, in one line."""


class Measured(NamedTuple):
    """What the figures are made of: the requests of the profiling phase."""

    completed: int = 0
    """Well or not."""
    succeeded: int = 0
    own_faults: int = 0
    """Failed by us."""
    streams: int = 0
    first_coalesced: int = 0
    """Streams whose first stamp covers more than one segment."""
    stamps: int = 0
    coalesced: int = 0


class _Check(NamedTuple):
    value: float
    degraded: float
    invalid: float
    sentence: str

    @property
    def level(self) -> int:
        return (self.value > self.degraded) + (self.value > self.invalid)


def certify(reports: Sequence[WorkerReport], measured: Measured, *, workers: int, open_loop: bool) -> Certificate:
    """Judge a run by what its workers said of themselves. A report that is missing, as after a crash, is INVALID."""
    if not reports:
        return Certificate("INVALID", ["No worker lived to report on itself: the run was cut short."], {})
    facts = _Facts(reports, measured)
    checks = [*_outcome_checks(measured, workers - len(reports), workers), *_checks(facts, reports, open_loop)]
    failed = [check for check in checks if check.level]
    failed.sort(key=lambda check: -check.level)
    worst = max((check.level for check in failed), default=0)
    return Certificate(VERDICTS[worst], [check.sentence for check in failed], facts.figures(), facts.summary())


class _Facts:
    """The reports of all workers as one."""

    def __init__(self, reports: Sequence[WorkerReport], measured: Measured) -> None:
        self.reads = sum(r.wire_stats.reads for r in reports)
        self.stamped = sum(r.wire_stats.stamped for r in reports)
        self.streams = measured.streams
        self.first_coalesced = measured.first_coalesced
        self.stamps = measured.stamps
        self.coalesced = measured.coalesced
        self.stale = sum(r.wire_stats.stale for r in reports)
        self.connects = sum(r.wire_stats.connects for r in reports)
        self.steps = max(r.clock_steps for r in reports)
        self.delay = _merged([r.wire_stats.delay for r in reports])
        self.connect = _merged([r.wire_stats.connect for r in reports])
        self.lateness = _merged([r.lateness for r in reports])
        self.queued = _merged([r.queued for r in reports])
        self.stalls = _merged([r.stalls for r in reports])
        self.ttft = _merged([r.ttft for r in reports])
        self.latency = _merged([r.latency for r in reports])
        self.cpu = max(_share(r.machine.cpu_s, r.machine.wall_s) for r in reports)
        self.held = max(_share(r.held_ns / 1e9, r.machine.wall_s) for r in reports)
        self.run_delay = max(_share(r.machine.run_delay_s, r.machine.wall_s) for r in reports)
        self.throttled = max(_share(r.machine.throttled_s, r.machine.wall_s) for r in reports)
        self.starved = sum(r.starved_ticks for r in reports)
        self.steal = max(_share(r.machine.steal_s, r.machine.wall_s) for r in reports)
        between, within = self.lateness.mean, self.latency.mean
        self.idle = _share(between, between + within)
        """Share of a closed loop's time in which a free slot waited for us to fill it."""
        self.wall_s = max(r.machine.wall_s for r in reports)

    @property
    def kernel(self) -> bool:
        return self.reads > 0 and self.stamped >= 0.99 * self.reads

    def summary(self) -> str:
        if not self.reads:
            return "nothing was received"
        read = f"read {_ms(self.delay.quantile(0.99)):g} ms (p99) after arrival" if self.kernel else "taken when read"
        parts = [f"stamps by the {'kernel' if self.kernel else 'client'}, {read}"]
        parts.append(f"sends {_ms(self.lateness.quantile(0.99)):g} ms (p99) late")
        if self.stamps:
            parts.append(f"{_share(self.coalesced, self.stamps):.1%} of the stamps cover several segments")
        parts.append(f"{self.cpu:.0%} of a core")
        if self.stale:
            parts.append(f"{self.stale:,} sent again on a new connection")
        return "; ".join(parts)

    def figures(self) -> dict[str, float | int | str | bool | None]:
        return {
            "stamps": "kernel" if self.kernel else "user space",
            "reads": self.reads,
            "reads_with_kernel_stamp": self.stamped,
            "read_delay_p50_ms": _ms(self.delay.quantile(0.5)),
            "read_delay_p99_ms": _ms(self.delay.quantile(0.99)),
            "read_delay_max_ms": _ms(self.delay.largest),
            "send_lateness_p50_ms": _ms(self.lateness.quantile(0.5)),
            "send_lateness_p99_ms": _ms(self.lateness.quantile(0.99)),
            "send_lateness_max_ms": _ms(self.lateness.largest),
            "slots_idle_share": round(self.idle, 4),
            "waits_for_the_input_file": self.starved,
            "requests_queued_for_a_slot": self.queued.n,
            "queued_p99_ms": _ms(self.queued.quantile(0.99)),
            "content_stamps": self.stamps,
            "coalesced_stamps": self.coalesced,
            "streams": self.streams,
            "coalesced_first_stamps": self.first_coalesced,
            "loop_stall_p99_ms": _ms(self.stalls.quantile(0.99)),
            "loop_stall_max_ms": _ms(self.stalls.largest),
            "cpu_share": round(self.cpu, 4),
            "sending_held_share": round(self.held, 4),
            "run_queue_share": round(self.run_delay, 4),
            "throttled_share": round(self.throttled, 4),
            "steal_share": round(self.steal, 4),
            "clock_steps": self.steps,
            "connections_opened": self.connects,
            "connect_p50_ms": _ms(self.connect.quantile(0.5)),
            "connect_max_ms": _ms(self.connect.largest),
            "stale_connections": self.stale,
        }


def _outcome_checks(measured: Measured, silent: int, workers: int) -> Iterator[_Check]:
    sentence = f"{silent} of {workers} workers did not live to report on themselves."
    yield _Check(silent, 0, 0, sentence)
    sentence = "No request succeeded: there are no figures to vouch for."
    yield _Check(measured.succeeded == 0, 0, 0, sentence)
    ours = _share(measured.own_faults, measured.completed)
    sentence = (
        f"{measured.own_faults:,} of {measured.completed:,} requests failed by a fault of the client itself, not of the "
        "server: see the failures with the fault 'penstock'."
    )
    yield _Check(ours, 0, _OWN_FAULTS, sentence)


def _checks(facts: _Facts, reports: Sequence[WorkerReport], open_loop: bool) -> Iterator[_Check]:
    ttft = facts.ttft.quantile(0.5) or facts.latency.quantile(0.5)
    delay = facts.delay.quantile(0.99)
    late = facts.lateness.quantile(0.99)
    stall = facts.stalls.quantile(0.99)
    first = _share(facts.first_coalesced, facts.streams)
    gaps = _share(facts.coalesced, facts.stamps)
    if facts.kernel:
        sentence = f"The wall clock was set {facts.steps} time(s) during the run, which moves kernel stamps near it."
        yield _Check(facts.steps, 0, 0, sentence)
        late_enough = delay > max(1e6, 0.02 * ttft)
        sentence = (
            f"{first:.1%} of the TTFTs are upper bounds: the first read covered several segments, which had waited up to "
            f"{_ms(delay)} ms (p99) for us."
        )
        yield _Check(first if late_enough else 0, 0.01, 0.10, sentence)
        sentence = f"{gaps:.1%} of the content stamps cover several segments, so gaps between tokens are blurred."
        yield _Check(gaps if delay > 1e6 else 0, 0.05, 0.25, sentence)
        yield _Check(stall, 50e6, 1e9, f"The loop stalled for up to {_ms(facts.stalls.largest)} ms.")
    elif facts.reads:
        sentence = f"Stamps are taken in user space, and the loop came up to {_ms(stall)} ms (p99) late."
        yield _Check(stall, max(1.5e6, 0.05 * ttft), max(10e6, 0.25 * ttft), sentence)
    if open_loop:
        sentence = f"Requests went out up to {_ms(late)} ms (p99) later than planned."
        yield _Check(late, max(1e6, 0.05 * ttft), max(20e6, 0.25 * ttft), sentence)
    sentence = "Sending had to wait for the input file to be read: the load was less than asked for."
    yield _Check(facts.starved, 0, 1e12, sentence)
    if facts.wall_s < _SHORT_S:
        return
    sentence = (
        f"The client used {facts.cpu:.0%} of its core: the throughput is its limit, not the server's; "
        "--workers-max spreads it over more cores."
    )
    yield _Check(facts.cpu, 0.92, 2.0, sentence)
    sentence = f"Replies came faster than they could be read: for {facts.held:.0%} of the time nothing new was sent."
    yield _Check(facts.held, 0.01, 2.0, sentence)
    if not open_loop:
        sentence = f"Slots stayed empty for {facts.idle:.1%} of the time: the concurrency was less than asked for."
        yield _Check(facts.idle, 0.05, 0.5, sentence)
    for share, degraded, invalid, what in (
        (facts.throttled, 0.01, 0.10, "The container's CPU quota stopped the client"),
        (facts.steal, 0.05, 0.25, "The hypervisor took the CPU away"),
        (facts.run_delay, 0.10, 0.50, "The client was ready but had no core"),
    ):
        yield _Check(share, degraded, invalid, f"{what} for {share:.1%} of the time.")
    if len(reports) > 1 and min(r.wire_stats.reads for r in reports) == 0 < facts.reads:
        yield _Check(1, 0, 2, "Some workers received nothing at all.")


def _merged(spreads: Sequence[LogHistogram]) -> LogHistogram:
    whole = LogHistogram()
    for spread in spreads:
        whole.merge(spread)
    return whole


def _share(part: float | None, whole: float) -> float:
    return part / whole if part and whole > 0 else 0.0


def _ms(ns: float) -> float:
    return round(ns / 1e6, 3)
