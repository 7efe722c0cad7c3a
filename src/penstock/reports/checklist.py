"""The checklist of good practice: for each rule of sound load tests, what this run did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from penstock.metrics.statistics import Stats
from penstock.metrics.steady_state import OVERLOADED
from penstock.metrics.summary import Summary
from penstock.plural import counted
from penstock.records.header import RunHeader
from penstock.settings.schema import LoadSettings

Status = Literal["done", "partly", "missing", "not applicable"]
_REQUESTS_PER_SLOT = 5
_P99_REQUESTS = 1_000
_LOCAL = ("localhost", "127.0.0.1", "::1", "")


class Item(msgspec.Struct, frozen=True):
    group: str
    rule: str
    status: Status
    text: str
    """What this run did."""


def checklist(summary: Summary, header: RunHeader) -> list[Item]:
    run = _Run(summary, header)
    groups = (
        ("Load", run.load_rules()),
        ("Time window", run.window_rules()),
        ("Statistics", run.statistics_rules()),
        ("Clocks and client", run.client_rules()),
        ("Tokens", run.token_rules()),
        ("Comparability", run.comparability_rules()),
    )
    return [Item(group, *rule) for group, rules in groups for rule in rules]


Rule = tuple[str, Status, str]


class _Run:
    def __init__(self, summary: Summary, header: RunHeader) -> None:
        self._summary = summary
        self._header = header
        self._settings = header.settings
        self._load = header.settings.load
        self._figures = {} if summary.certificate is None else summary.certificate.figures
        self._completed = summary.succeeded + summary.failed

    def _value(self, tag: str, statistic: str = "avg") -> float | None:
        stats: Stats | None = self._summary.metrics.get(tag)
        return None if stats is None else getattr(stats, statistic)

    def load_rules(self) -> Iterator[Rule]:
        load, summary = self._load, self._summary
        yield "State the load model", "done", _load_model(load)
        rule = "In an open loop, count latency from the intended send time"
        if load.open_loop:
            effective, plain = self._value("effective_latency", "p99"), self._value("request_latency", "p99")
            text = "Effective latency counts from the intended time."
            if effective is not None and plain is not None:
                text = (
                    f"Effective latency (p99 {effective:,.1f} ms) does; request latency (p99 {plain:,.1f} ms) does not."
                )
            yield rule, "done", text
        else:
            yield (
                rule,
                "not applicable",
                "In a closed loop a request has no time of its own: it is sent when a slot is free.",
            )
        yield self._lateness()
        if load.open_loop:
            rule = "Send at absolute times, not after sleeps"
            yield (
                rule,
                "done",
                "The seed and the settings decide each send time; a delay does not shift later ones.",
            )
            rule = "Send as often as the schedule says"
            if summary.queued:
                cause = "a free slot" if load.recorded is None else "an earlier reply"
                text = f"{counted(summary.queued, 'request')} waited up to {summary.longest_queued_ms:,.0f} ms for {cause}."
                yield rule, "partly", text
            else:
                yield rule, "done", f"No request waited for a free slot. {self._achieved()}".strip()
        seed = "chosen by the user" if self._settings.input.seed is not None else "drawn at the start, and recorded"
        yield "Seed everything that is random", "done", f"Seed {self._header.seed}, {seed}."
        if (concurrency := self._header.concurrency) is not None:
            ratio = self._completed / concurrency
            text = f"{counted(self._completed, 'request')} for a concurrency of {concurrency:,}: {ratio:,.1f} per slot."
            enough = ratio >= _REQUESTS_PER_SLOT
            rule = f"Send at least {_REQUESTS_PER_SLOT} times as many requests as the concurrency"
            yield rule, "done" if enough else "missing", text

    def _achieved(self) -> str:
        achieved, rate = self._value("request_throughput"), self._load.rate
        if achieved is None or rate is None:
            return ""
        return f"Offered {rate:g} requests/s, achieved {achieved:,.2f}."

    def _lateness(self) -> Rule:
        rule = "Report how late the client sent"
        lateness = self._figures.get("send_lateness_p99_ms")
        if lateness is None:
            return rule, "missing", "No worker reported it."
        return rule, "done", f"Requests were sent {lateness:g} ms (p99) after their time."

    def window_rules(self) -> Iterator[Rule]:
        summary = self._summary
        rule = "Leave the warm-up out"
        if summary.warmup_requests:
            yield rule, "done", f"{counted(summary.warmup_requests, 'warm-up request')} are not in the figures."
        else:
            yield rule, "missing", "The run had no warm-up; --warmup-request-count adds one."
        yield self._steady_state()
        if self._load.open_loop:
            rule = "Tell when the server does not keep up with the load"
            if summary.overload is not None:
                yield rule, "done", f"The server is {OVERLOADED}: take another load for latencies."
            else:
                yield rule, "done", "The number of requests in flight did not grow by more than chance."
        rule = "Report requests that the end of the run cut off"
        if summary.cancelled:
            bounds = "; the notes give bounds with them" if summary.censored is not None else ""
            text = f"{counted(summary.cancelled, 'request')} were cancelled and are not in the percentiles{bounds}."
            yield rule, "done" if bounds else "partly", text
        else:
            yield rule, "done", "No request was cut off."
        if self._value("effective_concurrency") is not None:
            yield (
                "Attribute tokens to the time at which they arrive",
                "done",
                "The time line counts each chunk at its arrival.",
            )

    def _steady_state(self) -> Rule:
        rule = "Find the steady state, without ramp and drain, and report it beside the whole run"
        steady = self._summary.steady_state
        if steady is None:
            return rule, "missing", "Too few requests to find it."
        text = f"From {steady.begin_s:,.1f} s to {steady.end_s:,.1f} s (MSER-5), with {counted(steady.requests, 'request')}"
        before = f"{counted(steady.head, 'request')} before it" if steady.head else "no request before it"
        return rule, "done", f"{text}; {before}."

    def statistics_rules(self) -> Iterator[Rule]:
        summary = self._summary
        rule = "Have enough requests for the percentiles"
        count = summary.succeeded
        if count >= _P99_REQUESTS:
            yield rule, "done", f"{counted(count, 'request')}: about {count // 100:,} are beyond the p99."
        else:
            status: Status = "partly" if count >= 100 else "missing"
            text = f"{counted(count, 'request')}: {'only about' if count >= 100 else 'fewer than one, about'}"
            yield rule, status, f"{text} {count / 100:.1f} beyond the p99; a stable p99 needs {_P99_REQUESTS:,}."
        rule = "Give confidence intervals that respect autocorrelation"
        known = [
            each for of_metric in summary.intervals.values() for each in of_metric.values() if each.low is not None
        ]
        if known:
            yield (
                rule,
                "done",
                f"{counted(len(known), 'figure')} have one, from batches of requests that follow each other.",
            )
        else:
            yield rule, "missing", "Too few requests for an interval."
        yield (
            "Compute percentiles from all values, never from percentiles",
            "done",
            "Over the values of all workers, with linear interpolation between ranks.",
        )
        rule = "Keep failures in sight"
        if not self._completed:
            yield rule, "missing", "No request was completed."
        else:
            share = summary.failed / self._completed
            text = f"{summary.failed:,} of {counted(self._completed, 'request')} failed ({share:.1%})."
            yield rule, "done", f"{text} Latencies and throughput are of the successful ones."
        rule = "Say which share of the requests meets the objectives"
        good = self._value("good_request_count")
        if good is None:
            yield rule, "missing", "No objective was given (--goodput)."
        else:
            share = good / self._completed if self._completed else 0.0
            shown = f"{share:.1%}{self._interval_of_share()}"
            text = f"{good:,.0f} of {self._completed:,} requests ({shown}) meet {self._settings.goodput}."
            yield rule, "done", text
        runs = self._settings.experiment.runs
        rule = "Repeat the run to learn the noise"
        if runs > 1:
            yield rule, "done", f"One of {runs} runs of the same settings."
        else:
            yield rule, "missing", "One run; --num-profile-runs repeats it."

    def _interval_of_share(self) -> str:
        found = self._summary.intervals.get("good_request_fraction", {}).get("avg")
        if found is None or found.low is None or found.high is None:
            return ""
        return f"; 95 % interval {found.low:.1%} to {found.high:.1%}"

    def client_rules(self) -> Iterator[Rule]:
        figures = self._figures
        yield "Use a monotonic clock for durations", "done", "All durations are on CLOCK_MONOTONIC."
        rule = "Stamp at the socket, before decoding"
        stamps = figures.get("stamps")
        if stamps is None:
            yield rule, "missing", "No worker reported how it took timestamps."
        else:
            kernel = stamps == "kernel"
            text = (
                "Kernel timestamps of the arrival."
                if kernel
                else "Timestamps of the read, because the kernel gave none."
            )
            yield rule, "done" if kernel else "partly", text
        if content := figures.get("content_stamps"):
            share = float(figures.get("coalesced_stamps") or 0) / float(content)
            text = (
                f"{share:.1%} of the timestamps cover several segments; the bounds of the figures contain their effect."
            )
            yield "Mark timestamps that several segments share", "done", text
        yield self._client_delay()
        yield self._connections()
        hosts = {(urlsplit(url).hostname or "") for url in self._settings.endpoint.urls}
        rule = "Keep the client off the server's machine"
        if hosts & set(_LOCAL):
            yield rule, "missing", "The server is on this machine, and shares its cores with the client."
        else:
            yield rule, "done", "The server has another host name."
        yield "Record the client's machine", "done", ", ".join(f"{k} {v}" for k, v in self._header.machine.items())

    def _connections(self) -> Rule:
        rule = "Keep connecting apart from serving"
        opened = int(self._figures.get("connections_opened") or 0)
        text = f"{counted(opened, 'connection')} for {counted(self._completed, 'request')}"
        return rule, "done", f"{text}; latencies count from the send on an open connection."

    def _client_delay(self) -> Rule:
        rule = "Measure the client's own delay, and judge the run by it"
        certificate = self._summary.certificate
        if certificate is None:
            return rule, "missing", "The run has no certificate."
        status: Status = {"VALID": "done", "DEGRADED": "partly"}.get(certificate.verdict, "missing")  # type: ignore[assignment]
        details = f": {certificate.summary}" if certificate.summary else ""
        return rule, status, f"Certificate {certificate.verdict}{details}."

    def token_rules(self) -> Iterator[Rule]:
        summary = self._summary
        rule = "Compare the token counts of server and client"
        agreement = summary.token_agreement
        if self._settings.endpoint.server_token_count:
            yield rule, "partly", "The server's counts are used, and not compared with those of the client."
        elif agreement is None:
            yield rule, "missing", "The replies have no usage, so only the client counted."
        else:
            agrees = "agree" if agreement.agrees else "do not agree; the report shows the token metrics by both"
            yield rule, "done" if agreement.agrees else "partly", f"The counts {agrees}."
        rule = "Enforce the output length, or report it"
        mismatched = self._value("osl_mismatch_count")
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in summary.finish_reasons.items()) or "none"
        text = f"Finish reasons: {reasons}."
        if mismatched is None:
            yield rule, "partly", f"No length was requested. {text}"
        elif mismatched:
            yield rule, "partly", f"{counted(int(mismatched), 'reply')} differ from the requested length. {text}"
        else:
            yield rule, "done", f"Replies have the requested length. {text}"
        if self._settings.endpoint.streaming:
            single = int(self._value("single_stamp_request_count") or 0)
            rule = "Detect replies that are not really streamed"
            text = f"{single:,} of {summary.succeeded:,} replies arrived with a single timestamp."
            yield rule, "partly" if single else "done", text
            rule = "Look for stalls, which means hide"
            longest = self._value("longest_gap", "max")
            if longest is None:
                yield rule, "missing", "No reply has gaps with exact timestamps."
            else:
                text = f"The longest gap is {longest:,.1f} ms (p99 of all replies {self._value('longest_gap', 'p99'):,.1f} ms)"
                fluidity = self._value("fluidity_index")
                reader = "" if fluidity is None else f"; fluidity {fluidity:.3f}"
                yield rule, "done", f"{text}{reader}."

    def comparability_rules(self) -> Iterator[Rule]:
        rule = "Know the state of the prefix cache"
        rates = []
        if (metrics := self._summary.server_metrics) is not None:
            rates = [
                figures["cache_hit_rate"].avg for figures in metrics.concepts.values() if "cache_hit_rate" in figures
            ]
        known = [rate for rate in rates if rate is not None]
        if known:
            yield rule, "done", f"The server reported a hit rate of {sum(known) / len(known):.1f} %."
        elif metrics is not None:
            yield rule, "missing", "Not known: the metrics of the server have no cache hits."
        else:
            yield rule, "missing", "Not known: the metrics of the server were not read (--server-metrics)."
        reuse = self._summary.prompt_reuse
        rule = "Tell whether prompts repeat"
        if reuse is None:
            yield rule, "missing", "The prompts were not compared."
        else:
            repeated = reuse.notes()
            yield (
                rule,
                "partly" if repeated else "done",
                repeated[0] if repeated else "No prompt repeats an earlier one.",
            )
        proof = self._summary.proof
        rule = "Record what is needed to repeat the run"
        text = f"Penstock {self._header.penstock_version}, all settings, the seed and the command are on this page"
        if proof is None:
            yield rule, "done", f"{text}."
        else:
            yield rule, "done", f"{text}; the SHA-256 over all bodies is {proof.root[:16]}…"
        rule = "Measure a curve of throughput and latency, not one point"
        if self._settings.experiment.parameters or self._settings.experiment.sweep:
            yield rule, "done", "This run is a point of a sweep."
        else:
            yield rule, "missing", "One load; a list of values, as in --concurrency 1,2,4,8, measures a curve."


def _load_model(load: LoadSettings) -> str:
    if load.recorded is not None:
        return "Open loop: requests are sent at their recorded times."
    rate = load.arrival_rate
    if rate is None:
        return f"Closed loop: {counted(load.concurrency or 1, 'conversation')} at a time."
    noun = "conversations" if load.conversation_rate is not None else "requests"
    limit = "" if load.concurrency is None else f", with at most {load.concurrency:,} at a time (partly open)"
    return f"Open loop: {rate:g} {noun}/s with {load.arrivals} arrivals{limit}."
