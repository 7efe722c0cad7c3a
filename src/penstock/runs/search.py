"""A search for the largest load that meets service level objectives, as an experiment: its levels share workers, connections
and the log."""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.metrics.capacity import (
    ERROR_RATE,
    CapacitySearch,
    Decision,
    Level,
    LevelTest,
    Outcome,
    SearchOutcome,
    Slo,
    parse_slo,
)
from penstock.metrics.catalogue import CATALOGUE
from penstock.records.log import LEVEL, RunLog, variation_label
from penstock.records.record import Record
from penstock.runs.log_tail import LogTail, values_while_running
from penstock.runs.points import Point, PointRuns, base_seed
from penstock.runs.run_folder import LOG_FOLDER
from penstock.runs.runner import RunningPhase
from penstock.settings.schema import ExperimentSettings, Settings

__all__ = ["SEARCH_FILE", "Search", "logged_search", "write_search"]

SEARCH_FILE = "profile_export_penstock_search.json"
_POLL_NS = 50_000_000
_MIN_SPAN_S, _MAX_SPAN_S = 2.0, 60.0
_MAX_FACTOR = 4
"""An undecided level ends after this many times the requests of a level without a miss."""


class _LevelRule:
    """Ends a level when its test has decided."""

    def __init__(
        self, log: str, slos: tuple[Slo, ...], value: float, settle: int, *, first_look: bool, span_s: float = 0.0
    ) -> None:
        """`settle` requests at the start of the level are not judged. A level passes only if the start times of the others
        cover at least `span_s`."""
        self._span_ns = round(span_s * 1e9)
        self._slos = slos
        self._value = value
        self._settle = settle
        self._first_look = first_look
        self._test = LevelTest(slos)
        self._tail = LogTail(log)
        self._phase = -1
        self._polled = 0
        self._outcomes: list[Outcome] = []
        self._decision: Decision | None = None

    def is_met(self, running: RunningPhase) -> bool:
        self._phase = running.index
        now = monotonic_ns()
        if now - self._polled < _POLL_NS:
            return False
        self._polled = now
        self._read()
        # Long requests end last. Judge only those that started before any that may still be in flight.
        longest = max((outcome.end - outcome.start for outcome in self._outcomes), default=0)
        horizon = max((outcome.end for outcome in self._outcomes), default=0) - longest
        self._decision = self._decide(horizon)
        return self._decision is not None

    def level(self) -> Level:
        """Return what was observed. Call it after the end of the level."""
        self._read()
        judged = self._judged(None)
        misses = tuple(sum(not outcome.met[i] for outcome in judged) for i in range(len(self._slos)))
        decision = self._decision or self._decide(None)
        full = not self._first_look or decision == "fail" or self._test.decide(judged) == "pass"
        observed = tuple(
            slo.observed([outcome.values[i] for outcome in judged]) for i, slo in enumerate(self._slos) if judged
        )
        return Level(self._value, len(judged), misses, decision, full, observed)

    def facts(self) -> dict[str, Any]:
        """Return what the log keeps about the level."""
        return msgspec.structs.asdict(self.level())

    @property
    def latency_s(self) -> float:
        """Mean time of a request."""
        times = [outcome.end - outcome.start for outcome in self._outcomes]
        return sum(times) / len(times) / 1e9 if times else 0.0

    def _read(self) -> None:
        records = [record for record in self._tail.read() if self._counts(record)]
        for record, values in zip(records, values_while_running(records), strict=True):
            met = tuple(slo.is_met(values) for slo in self._slos)
            observed = tuple(slo.value(values) for slo in self._slos)
            self._outcomes.append(Outcome(record.start, record.end, met, observed))
        self._outcomes.sort()

    def _counts(self, record: Record) -> bool:
        return record.phase == self._phase and not record.cancelled

    def _judged(self, horizon: int | None) -> list[Outcome]:
        judged = self._outcomes[self._settle :]
        return judged if horizon is None else [outcome for outcome in judged if outcome.start <= horizon]

    def _decide(self, horizon: int | None) -> Decision | None:
        judged = self._judged(horizon)
        decision = self._test.decide(judged, first_look=self._first_look)
        if decision == "pass" and judged[-1].start - judged[0].start < self._span_ns:
            return None
        return decision


class Search:
    def __init__(self, settings: Settings, folder: str, slos: tuple[Slo, ...]) -> None:
        """`settings.experiment` has the parameter and its range."""
        self._settings = settings
        self._folder = folder
        self._slos = slos
        experiment = settings.experiment
        self._closed_loop = experiment.find_max == "concurrency"
        self._parameter = "concurrency" if self._closed_loop else "request_rate"
        self._range = experiment.search_min, experiment.search_max
        self._seed = base_seed(settings)
        self._number = 0
        self._visits: dict[float, int] = {}
        self._search = CapacitySearch(slos, *self._range, whole=self._closed_loop)
        self._span_s = 0.0 if self._closed_loop else _span_s(slos)
        self._cap = _MAX_FACTOR * LevelTest(slos).requests_to_pass
        self.largest = [self._at(self._range[1], 0.0)]
        self.settings = replace(self._at(self._range[0], 0.0), output=replace(settings.output, folder=folder))

    def points(self) -> PointRuns:
        latency_s = 0.0
        while (value := self._search.next()) is not None:
            settle = int(value) if self._closed_loop else round(value * latency_s)
            log = os.path.join(self._folder, LOG_FOLDER)
            rule = _LevelRule(
                log, self._slos, value, settle, first_look=self._search.allows_first_look(value), span_s=self._span_s
            )
            yield self._point(value, latency_s, rule)
            level = rule.level()
            if not level.requests:
                return
            self._search.add(level)
            latency_s = rule.latency_s

    def _point(self, value: float, latency_s: float, rule: _LevelRule) -> Point:
        number, self._number = self._number, self._number + 1
        parameters: dict[str, int | float] = {self._parameter: int(value) if self._closed_loop else value}
        label = variation_label(parameters)
        visit = self._visits[value] = self._visits.get(value, 0) + 1
        name = label if visit == 1 else f"{label}_visit_{visit}"
        settings = self._at(value, latency_s)
        output = replace(settings.output, folder=os.path.join(self._folder, name))
        return Point(replace(settings, output=output), name, parameters, number, rule=rule)

    def _at(self, value: float, ramp_s: float) -> Settings:
        load = self._settings.load
        unlimited = load.requests is None and load.duration_s is None
        if self._closed_loop:
            if unlimited:
                # All levels have the same number, because the size of the dataset depends on it.
                load = replace(load, requests=self._cap + int(self._range[1]))
            # Slots that start together would stay in step: the queue would then be full or empty, but never in between.
            ramp = ramp_s if ramp_s and value > 1 else None
            load = replace(load, concurrency=int(value), concurrency_ramp_s=ramp)
        else:
            if unlimited:
                load = replace(load, duration_s=self._cap / value + 2 * self._span_s)
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
    log = RunLog(folder)
    for sample in log.samples():
        if sample.source == LEVEL and (level := msgspec.convert(sample.values, Level)).requests:
            search.add(level)
    log.close()
    return SearchOutcome(settings.parameters[0], slos, search.result())


class _Document(msgspec.Struct):
    parameter: str
    objectives: list[str]
    found: bool
    limit: dict[str, float | None]
    requests: int
    levels: list[dict[str, object]]


def write_search(path: str, search: SearchOutcome) -> None:
    parameter, slos, result = search
    limit = result.limit
    document = _Document(
        parameter,
        [slo.text for slo in slos],
        limit is not None,
        {} if limit is None else {"estimate": limit.estimate, "low": limit.low, "high": limit.high},
        sum(level.requests for level in result.levels),
        [
            {
                parameter: level.value,
                "requests": level.requests,
                "observed": list(level.observed),
                "misses": list(level.misses),
                "fitted_miss_shares": list(fitted),
                "decision": level.decision or "undecided",
            }
            for level, fitted in zip(result.levels, result.fitted, strict=True)
        ],
    )
    with open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=2))
