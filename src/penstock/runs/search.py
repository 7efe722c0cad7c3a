"""A search for the largest load that meets service level objectives, as an experiment: one run, in which the load changes while
requests are in flight. Each request belongs to the load at which it was sent. Those that were sent before the requests of the
load before had ended are not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.errors import UserError
from penstock.metrics.bounds import bounds_of
from penstock.metrics.capacity import (
    ERROR_RATE,
    CapacitySearch,
    Decision,
    LoadResult,
    ObjectiveTest,
    Outcome,
    SearchOutcome,
    SearchResult,
    Slo,
    Visit,
    parse_slo,
)
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.trend import kendall
from penstock.plural import counted
from penstock.records.log import SEARCH_LOAD, RunLog, variation_label
from penstock.records.record import Record
from penstock.runs.log_tail import LogTail, values_while_running
from penstock.runs.phase_runner import RunningPhase
from penstock.runs.points import Point, PointRuns, Variation
from penstock.runs.run_folder import LOG_FOLDER
from penstock.runs.variations import base_seed
from penstock.schedule.limits import LinearRamp
from penstock.settings.schema import ExperimentSettings, Settings
from penstock.workers.messages import Progress

SEARCH_FILE = "profile_export_penstock_search.json"
POLL_NS = 50_000_000
_MIN_SPAN_S, _MAX_SPAN_S = 2.0, 60.0
_GROWING_SPANS = 5
"""A rate at which latencies grow has to pass for this many times the usual span."""
_WARM_UP_NS = 4_000_000_000
"""The lowest load fails only if its last visit is that long, and is visited again as long as it improves, because a server
that has just started may be slow for seconds."""
_MIN_LOOK = 8
_LOOKS: dict[Visit, float] = {"first look": 0.1, "test": 0.1, "last": 0.25}
"""How far the number of requests grows until a load is judged again, at least by so many. Each look may be wrong."""
_TREND_BATCHES = 10
_TREND = 0.6
"""Kendall's rank correlation of latencies with time above which they grow."""


class Start(NamedTuple):
    """How a load begins."""

    continues: bool
    """Requests of the load before are still in flight."""
    ramp_s: float = 0.0
    """Time in which the number of requests in flight moves to that of the load."""
    settle: int = 0
    """Requests at the start of the load that are not judged, because the server was empty."""


class LoadRule:
    """Ends a load when its test has decided, or when its requests do not suffice."""

    kind = SEARCH_LOAD

    def __init__(
        self,
        tail: LogTail,
        test: ObjectiveTest,
        slos: tuple[Slo, ...],
        value: float,
        start: Start,
        visit: Visit,
        span_s: float = 0.0,
        fails_after_ns: int = 0,
    ) -> None:
        """`tail` reads the log for all loads of a search. A load passes only if the start times of the requests that are
        judged cover `span_s`, and fails only if they cover `fails_after_ns`."""
        self._span_ns = round(span_s * 1e9)
        self._fails_after_ns = fails_after_ns
        self._slos = slos
        self._value = value
        self._start = start
        self._visit: Visit = visit
        self._test = test
        self._tail = tail
        self._phase = -1
        self._polled = 0
        self._next_look = 0
        """Requests after which the load is judged again. They grow by a constant factor, so that judging takes a constant
        time for each request."""
        self._outcomes: list[Outcome] = []
        self._unclear: list[int] = []
        """Starts of the requests that may have missed an objective only because of the client."""
        self._succeeded = self._streamed = False
        self._unmeasured = [slo for slo in slos if slo.metric != ERROR_RATE]
        """Objectives for a metric that no successful request has had."""
        self._before = 0
        """End of the last request of an earlier load."""
        self._judged: list[Outcome] = []
        self._decision: Decision | None = None

    def is_met(self, running: RunningPhase) -> bool:
        self._phase = running.index
        now = monotonic_ns()
        if now - self._polled < POLL_NS and not running.done:
            return False
        self._polled = now
        self._read(running.progress.workers)
        if len(self._outcomes) < self._next_look and not running.done:
            return False
        self._judge(everything=running.done)
        self._next_look = len(self._outcomes) + max(_MIN_LOOK, round(_LOOKS[self._visit] * len(self._judged)))
        exhausted = len(self._judged) >= self._test.most_requests(self._visit)
        if exhausted:
            exhausted = self._covers_span(_spans(self._visit)) and self._span() >= self._fails_after_ns
        return self._decision is not None or exhausted

    def result(self) -> LoadResult:
        """Return what was observed up to the decision."""
        judged = self._judged
        misses = tuple(sum(not outcome.met[i] for outcome in judged) for i in range(len(self._slos)))
        unclear = sum(judged[0].start <= start <= judged[-1].start for start in self._unclear) if judged else 0
        observed = tuple(
            slo.observed([outcome.values[i] for outcome in judged]) for i, slo in enumerate(self._slos) if judged
        )
        return LoadResult(self._value, len(judged), misses, self._decision, self._visit == "last", unclear, observed)

    def check_measured(self) -> None:
        """Raise UserError if requests have succeeded, but none has the metric of an objective, which all then seem to miss."""
        if self._succeeded and self._unmeasured:
            slo = self._unmeasured[0]
            advice = "choose another metric" if self._streamed else "add --streaming, or choose another metric"
            raise UserError(f"No reply has {slo.metric}, which --slo '{slo.text}' limits; {advice}.")

    def facts(self) -> dict[str, Any]:
        """Return what the log keeps about the load."""
        return msgspec.structs.asdict(self.result()) | {"latency_s": self.latency_s}

    def outcome(self) -> str:
        result = self.result()
        decision = {"pass": "passes", "fail": "fails", None: "is not decided"}[result.decision]
        misses = " and ".join(
            f"{count:,} did not meet {slo.text}" for count, slo in zip(result.misses, self._slos, strict=True)
        )
        return f"{decision}; of {counted(result.requests, 'request')}, {misses}"

    @property
    def latency_s(self) -> float:
        """Mean time of a request."""
        times = [outcome.end - outcome.start for outcome in self._outcomes]
        return sum(times) / len(times) / 1e9 if times else 0.0

    def _read(self, workers: Sequence[Progress]) -> None:
        records = [record for record in self._tail.read(workers) if record.phase <= self._phase]
        ends = [record.end for record in records if record.phase < self._phase]
        self._before = max(self._before, *ends) if ends else self._before
        records = [record for record in records if record.phase == self._phase and not record.cancelled]
        for record, values in zip(records, values_while_running(records), strict=True):
            if values is not None:
                self._succeeded = True
                self._streamed |= record.streamed
                self._unmeasured = [slo for slo in self._unmeasured if slo.metric not in values]
            met = _met(record, values, self._slos)
            if met is None:
                self._unclear.append(record.start)
            else:
                observed = tuple(slo.value(values) for slo in self._slos)
                self._outcomes.append(Outcome(record.start, record.end, met, observed, record.worker, record.issued))

    def _judge(self, *, everything: bool) -> None:
        """Judge the requests after the transition; unless `everything` has ended, only settled ones."""
        outcomes = self._outcomes
        if not outcomes:
            return
        outcomes.sort()
        first = outcomes[0].start
        if self._start.continues:
            first = max(self._before, first + round(self._start.ramp_s * 1e9))
        self._judged = [
            outcome
            for outcome in outcomes[self._start.settle :]
            if first <= outcome.start and (everything or self._tail.is_settled(outcome.worker, outcome.issued))
        ]
        self._decision = self._test.decide(self._judged, self._visit) if self._judged else None
        if self._decision == "pass" and not self._covers_span(_GROWING_SPANS if self._span_ns and self._grows() else 1):
            self._decision = None
        if self._decision == "fail" and not everything and self._span() < self._fails_after_ns:
            self._decision = None

    def _span(self) -> int:
        """Return the time between the first and the last start of the requests that are judged."""
        return self._judged[-1].start - self._judged[0].start

    def _covers_span(self, times: int) -> bool:
        return self._span() >= times * self._span_ns

    def _grows(self) -> bool:
        """Return whether latencies grow with time, as they do in a queue that never ends."""
        if len(self._judged) < 2 * _TREND_BATCHES:
            return True
        latencies = np.array([outcome.end - outcome.start for outcome in self._judged], np.float64)
        edges = np.linspace(0, len(latencies), _TREND_BATCHES + 1).astype(np.int64)
        return kendall(np.add.reduceat(latencies, edges[:-1]) / np.diff(edges)) > _TREND


def _spans(visit: Visit) -> int:
    """Return how many spans of time a rate takes that is not decided."""
    return 1 if visit == "last" else _GROWING_SPANS


def _met(record: Record, values: dict[str, float] | None, slos: tuple[Slo, ...]) -> tuple[bool, ...] | None:
    """Return for each objective whether a request meets it; None if that depends on how far the client delayed it."""
    met = tuple(slo.is_met(values) for slo in slos)
    if values is None or all(met):
        return met
    uncertain = bounds_of(record, values)
    lower = values | {tag: bounds.low for tag, bounds in uncertain.items()}
    return met if met == tuple(slo.is_met(lower) for slo in slos) else None


class Search:
    servers = 1

    def __init__(self, settings: Settings, folder: str, seed: int | None = None) -> None:
        """`settings.experiment` has the parameter, its range and the objectives; `seed` is that of a search that is resumed."""
        self._settings = settings
        self.variations = [Variation(settings)]
        self._folder = folder
        experiment = settings.experiment
        self._slos = slos = tuple(parse_slo(text) for text in experiment.slos)
        self._closed_loop = experiment.find_max == "concurrency"
        self._parameter = "concurrency" if self._closed_loop else "request_rate"
        self._range = experiment.search_min, experiment.search_max
        self._seed = base_seed(settings) if seed is None else seed
        self._number = 0
        self._visits: dict[float, int] = {}
        self._search = CapacitySearch(slos, *self._range, whole=self._closed_loop)
        self._test = ObjectiveTest(slos, experiment.level_requests, open_loop=not self._closed_loop)
        self._span_s = 0.0 if self._closed_loop else _span_s(slos)
        self.largest = [self._at(self._range[1])]
        self.settings = replace(self._at(self._range[0]), output=replace(settings.output, folder=folder))

    @property
    def result(self) -> SearchResult:
        return self._search.result()

    def points(self) -> PointRuns:
        before: LoadResult | None = None
        latency_s = 0.0
        sends = False
        tail = LogTail(os.path.join(self._folder, LOG_FOLDER))
        while (value := self._search.next()) is not None:
            start = self._start(value, before, latency_s, sends=sends)
            visit = self._search.visit(value)
            patience = _WARM_UP_NS if visit == "last" and value == self._range[0] else 0
            rule = LoadRule(tail, self._test, self._slos, value, start, visit, self._span_s, patience)
            result = yield replace(
                self._point(value, before, start, rule), most_requests=self._most_requests(value, visit, latency_s)
            )
            assert result.facts is not None
            if before is None and not result.from_log:
                rule.check_measured()
            before = msgspec.convert(result.facts, LoadResult)
            if not before.requests:
                return
            self._search.add(before)
            latency_s = min(latency_s or math.inf, result.facts["latency_s"])
            sends = not result.from_log

    def _start(self, value: float, before: LoadResult | None, latency_s: float, *, sends: bool) -> Start:
        """Return how a load begins. `sends` says whether requests of the load before can be in flight."""
        if self._closed_loop:
            return Start(True, latency_s) if sends else Start(False, settle=int(value))
        # The queue of a rate that was too high would be judged at the next rate: it shrinks as slowly as the rate is close to
        # the capacity, while a server without new requests empties it at its full speed.
        if before is None or not sends or not self._search.passes(before):
            return Start(False, settle=round(value * latency_s))
        return Start(True)

    def _point(self, value: float, before: LoadResult | None, start: Start, rule: LoadRule) -> Point:
        number, self._number = self._number, self._number + 1
        parameters: dict[str, int | float | str] = {self._parameter: int(value) if self._closed_loop else value}
        label = variation_label(parameters)
        visit = self._visits[value] = self._visits.get(value, 0) + 1
        name = label if visit == 1 else f"{label}_visit_{visit}"
        settings = self._at(value)
        slots: LinearRamp | None = None
        if self._closed_loop and before is not None and start.continues and before.value != value:
            # Slots that start together would stay in step: the queue would then be full or empty, but never in between.
            slots = LinearRamp(int(before.value), int(value), start.ramp_s)
        return Point(
            replace(settings, output=replace(settings.output, folder=os.path.join(self._folder, name))),
            name,
            parameters,
            number,
            warmup=before is None,
            goes_on=True,
            rule=rule,
            drain=not start.continues,
            slots=slots,
        )

    def _most_requests(self, value: float, visit: Visit, latency_s: float) -> int:
        """Return about how many requests a visit takes that does not decide, with those that are not judged."""
        most, in_flight = self._test.most_requests(visit), value
        if not self._closed_loop:
            most, in_flight = max(most, round(_spans(visit) * self._span_s * value)), value * latency_s
        return most + round(2 * in_flight)

    def _at(self, value: float) -> Settings:
        load = self._settings.load
        unlimited = load.requests is None and load.duration_s is None
        most = self._test.max_requests
        if self._closed_loop:
            if unlimited:
                # All loads have the same number, because the size of the dataset depends on it.
                load = replace(load, requests=most + 4 * int(self._range[1]))
            load = replace(load, concurrency=int(value))
        else:
            if unlimited:
                load = replace(load, duration_s=2 * most / value + 2 * _GROWING_SPANS * self._span_s)
            load = replace(load, rate=value, concurrency=None)
        return replace(self._settings, load=load, input=replace(self._settings.input, seed=self._seed))


def _span_s(slos: tuple[Slo, ...]) -> float:
    """Return how long requests have to arrive before a rate can pass. A queue that grows because the rate is 10 % too high
    needs ten times the limit of a latency to exceed it."""
    limits = [slo.limit for slo in slos if slo.metric != ERROR_RATE and CATALOGUE[slo.metric].unit == "ms"]
    return min(max(_MIN_SPAN_S, 10 * max(limits, default=0.0) / 1000), _MAX_SPAN_S)


def logged_search(folder: str, settings: ExperimentSettings) -> SearchOutcome | None:
    """Return what a search found, from the folder of its log; None if the experiment is no search."""
    if settings.find_max is None:
        return None
    slos = tuple(parse_slo(text) for text in settings.slos)
    search = CapacitySearch(slos, settings.search_min, settings.search_max, whole=settings.find_max == "concurrency")
    for decision in RunLog(folder).decisions(SEARCH_LOAD):
        if (load := msgspec.convert(decision.values, LoadResult)).requests:
            search.add(load)
    return SearchOutcome(settings.parameters[0], slos, search.result())


class _Document(msgspec.Struct):
    parameter: str
    objectives: list[str]
    found: bool
    limit: dict[str, float | None]
    requests: int
    levels: list[dict[str, object]]


def write_search(path: str, search: SearchOutcome) -> None:
    parameter, slos, result, certificates = search
    limit = result.limit
    document = _Document(
        parameter,
        [slo.text for slo in slos],
        limit is not None,
        {} if limit is None else {"estimate": limit.estimate, "low": limit.low, "high": limit.high},
        sum(load.requests + load.requests_before for load in result.loads),
        [
            {
                parameter: load.value,
                "requests": load.requests,
                "observed": list(load.observed),
                "misses": list(load.misses),
                "unclear_requests": load.unclear,
                "fitted_miss_shares": list(fitted),
                "decision": load.decision or "undecided",
                "certificate": certificates.get(load.value),
                "requests_of_earlier_visits": load.requests_before,
                "changed": load.changed,
            }
            for load, fitted in zip(result.loads, result.fitted, strict=True)
        ],
    )
    with open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=2))
