"""The runner of points: it loads the dataset of a point and runs its phases. Nothing else starts phases."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Hashable
from time import monotonic_ns
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.errors import UserError
from penstock.records.header import encode_header
from penstock.records.log import FAILURES, INTERRUPTED, STOP_RULE, LoggedPoint, RunLog
from penstock.runs.observer import Observer
from penstock.runs.phase_runner import RunningPhase, RunProgress
from penstock.runs.points import Point
from penstock.runs.prepare import connections_to_open, expected_requests, header_fields, phase_loads, plan_phases
from penstock.runs.start_run import StartedRun
from penstock.runs.stop_rules import FailureRule, StopRule, Watch
from penstock.runs.stored_data import StoredData, data_key, fill_store, load_dataset
from penstock.runs.user_files import write_user_files
from penstock.schedule.phase import Phase
from penstock.settings.redact import redacted
from penstock.settings.schema import Settings, WarmupSettings

_LEAD_S = 0.6


class EndedPoint(NamedTuple):
    """A point that has sent its requests and has no report yet."""

    point: Point
    logged: LoggedPoint | None
    """Its frame in the log; None if it is the whole run."""
    facts: dict[str, Any] | None = None
    """What the rule of the point has found; None without a rule."""
    unsent: str | None = None
    """Why nothing could be sent: its dataset cannot be loaded."""


class _Sending(NamedTuple):
    """A point that sends until the next one begins."""

    running: RunningPhase
    sent_before: int
    """Requests of all phases before it."""

    def next_position(self, progress: RunProgress) -> int:
        """Return a position in the dataset that lies just after what the point will probably have sent when the next one
        begins. The counts are up to 0.1 s old, and the next point begins up to 0.5 s later."""
        sent = progress.sent - self.sent_before
        seconds = max(0.1, (monotonic_ns() - self.running.began) / 1e9)
        return self.running.phase.first + sent + round(_LEAD_S * sent / seconds)


class PointRunner:
    """Runs points one after the other on the workers of a run."""

    def __init__(self, run: StartedRun, observer: Observer) -> None:
        self._run = run
        self._runner = run.runner
        self._observer = observer
        prepared, logged = run.prepared, run.logged
        self._log_folder = prepared.job.log
        self._folder = os.path.dirname(prepared.job.log)
        self._header = RunLog.read_header(prepared.job.log)
        key = self._key(self._header.settings)
        self._stored: dict[Hashable, StoredData] = {key: prepared.data}
        """Datasets are built once and kept for later points."""
        self._loaded: tuple[Hashable, int] = key, prepared.job.seed
        self._after_warmup: dict[tuple[Hashable, int], int] = {}
        """Position in the dataset at which profiling starts, by dataset and seed."""
        self._position = 0
        """Position in the dataset at which the last point ended."""
        self._count = 0
        self._begun = None if logged is None else logged.begun
        """What is left of a point that an earlier process began."""
        self._sending: _Sending | None = None
        """A point that sends until the next one begins."""
        if logged is not None:
            self._count, self._position = logged.count, logged.position
            for settings, stored in logged.datasets():
                self._stored.setdefault(self._key(settings), stored)
            for point in logged.points:
                if point.after_warmup is not None:
                    self._after_warmup[self._key(point.settings), self._seed(point.settings)] = point.after_warmup

    def run(self, point: Point, rule: StopRule | None = None) -> EndedPoint | None:
        """Run the phases of a point; return None if the run has to end before it. `rule` ends its profiling phase
        early."""
        runner = self._runner
        if point.drain:
            self.end_sending()
            runner.pause(point.pause_s)
        if runner.stopping:
            return None
        settings = replace(point.settings, endpoint=self._run.settings.endpoint)  # with the URLs of mock servers
        try:
            data = self._load(settings)
            if settings.output.user_files:
                write_user_files(settings, self._header.epoch_wall_ns // 10**9)
        except UserError as error:
            return EndedPoint(point, None, unsent=str(error))
        if runner.stopping:
            return None
        if not point.warmup:
            settings = replace(settings, warmup=WarmupSettings())
        begun, self._begun = self._begun, None
        index = self._count if begun is None or begun.logged is None else begun.logged.index
        if begun is not None and begun.phases is not None:
            phases, position = list(begun.phases), begun.position
        else:
            phases, position = self._phases(point, settings, data, index), self._first_position(point)
        logged = (
            None if point.alone else self._log(point, settings, data, phases[-1]) if begun is None else begun.logged
        )
        expected = expected_requests(phases, data.bodies, data.dataset.turns, settings.input.sampling)
        shown = expected if point.most_requests is None else [*expected[:-1], point.most_requests]
        self._observer.point_begins(point, phases, shown)
        for phase, load, requests in zip(phases, phase_loads(settings)[-len(phases) :], expected, strict=True):
            profiling = phase.kind == "profiling"
            only = point.rule or rule
            own = () if not profiling else self._rules(settings, phase) if only is None else (only,)
            watch = Watch(FailureRule(settings.load, runner.progress), own)
            before = self._sending
            running = runner.start(
                phase.starting_at(position),
                drain=before is None,
                connections=connections_to_open(phase, load.arrival_rate, requests),
            )
            if running is None:
                if phase is phases[0]:
                    return None
                if runner.interrupts:
                    runner.log_decision(INTERRUPTED)
                return EndedPoint(point, logged)
            if profiling and point.rule is not None:
                self._sending = _Sending(running, runner.progress.sent)
                if before is not None:
                    self._position = before.running.wait().next_position
                running.watch(watch.is_met)
                ended = self._end_phase(point, logged, running, watch)
                if watch.failed is not None or runner.stopping or running.done:
                    self.end_sending()
                return ended
            # The queue of a server that fell behind would take longer than the run has taken so far.
            grace_s = settings.load.grace_s if settings.load.stop_on_overload else math.inf
            self._position = position = running.wait(watch.is_met, grace_s=grace_s).next_position
            if not profiling:
                self._after_warmup[self._loaded] = position
            ended = self._end_phase(point, logged, running, watch)
            if watch.failed is not None or runner.stopping:
                break
        return ended

    def _end_phase(self, point: Point, logged: LoggedPoint | None, running: RunningPhase, watch: Watch) -> EndedPoint:
        """Log what ended a phase."""
        runner = self._runner
        facts: dict[str, Any] | None = None
        for rule in watch.rules:
            # What a search has seen of a load at an interrupt decides nothing.
            if rule.kind is not None and not (runner.stopping and point.rule is not None):
                facts = rule.facts()
                runner.log_decision(rule.kind, facts, running.index)
        if watch.failed is not None:
            runner.log_decision(FAILURES, {"reason": watch.failed}, running.index)
        elif runner.interrupts:
            runner.log_decision(INTERRUPTED, phase=running.index)
        elif watch.ended_by_rule or (point.rule is not None and not runner.stopping):
            runner.log_decision(STOP_RULE, phase=running.index)  # the phase is complete although it was stopped
        return EndedPoint(point, logged, facts)

    def end_sending(self) -> None:
        """End the point that sends until the next one begins, if there is one."""
        sending, self._sending = self._sending, None
        if sending is not None:
            if not sending.running.done:
                sending.running.stop()
            self._position = sending.running.wait().next_position

    def _rules(self, settings: Settings, phase: Phase) -> list[StopRule]:
        """Return the rules of the settings for a profiling phase."""
        rules: list[StopRule] = [self._until_rule(settings, phase)] if settings.until else []
        if settings.load.stop_on_overload:
            from penstock.runs.overload_rule import OverloadRule

            rules.append(OverloadRule(self._log_folder, self._runner.progress.workers))
        return rules

    def _until_rule(self, settings: Settings, phase: Phase) -> StopRule:
        from penstock.metrics.precision import parse_precision
        from penstock.runs.until import UntilRule

        earlier: dict[int, set[int]] = {}
        if phase.resumed is not None:
            log = RunLog(self._log_folder)
            same = [each.index for each in log.phases if (each.point, each.kind) == (phase.point, phase.kind)]
            earlier = {index: {*log.superseded.get(index, ()), *phase.resumed.unfinished} for index in same}
        workers = self._runner.progress.workers
        return UntilRule(self._log_folder, parse_precision(settings.until), earlier, workers)

    # -- the dataset --------------------------------------------------------------------------------------------------

    def _key(self, settings: Settings) -> Hashable:
        header = self._header
        return data_key(settings, synthetic=header.dataset == "synthetic", depends_on_seed=header.depends_on_seed)

    def _seed(self, settings: Settings) -> int:
        return self._header.seed if settings.input.seed is None else settings.input.seed

    def _load(self, settings: Settings) -> StoredData:
        """Let the workers take their conversations from the dataset of these settings, in the order of their seed."""
        key, seed = self._key(settings), self._seed(settings)
        stored = self._stored.get(key)
        if stored is None:
            dataset = load_dataset(settings, seed, self._run.tokenizer, self._observer, "Preparing prompts")
            stored = fill_store(self._log_folder, f"data-{len(self._stored)}", settings, dataset, self._observer)
            self._stored[key] = stored
        if self._loaded != (key, seed):
            if self._loaded[0] != key:
                self._position = 0
            self._runner.load(stored.logged, seed)
            self._loaded = key, seed
        return stored

    def _first_position(self, point: Point) -> int:
        """Return where a point begins in the order of its dataset."""
        if point.goes_on:
            return self._position if self._sending is None else self._sending.next_position(self._runner.progress)
        # A run that leaves the warmup out sends the same prompts as the one that had it.
        return 0 if point.warmup else self._after_warmup.get(self._loaded, 0)

    def _phases(self, point: Point, settings: Settings, data: StoredData, index: int) -> list[Phase]:
        seed = self._seed(settings) if point.seed is None else point.seed
        made = plan_phases(settings, data.dataset, seed, self._header.servers)
        phases = [replace(phase, point=index) for phase in made]
        if point.slots is not None:
            phases[-1] = replace(phases[-1], slots=point.slots)
        if point.phase_name is not None:
            phases[-1] = replace(phases[-1], name=point.phase_name)
        return phases

    def _log(self, point: Point, settings: Settings, data: StoredData, phase: Phase) -> LoggedPoint:
        header = replace(
            self._header,
            benchmark_id=secrets.token_hex(6),
            settings=redacted(settings),
            seed=self._seed(settings),
            variations=[],
            **header_fields(data, phase),
        )
        logged = LoggedPoint(
            self._count,
            point.label,
            os.path.relpath(settings.output.folder, self._folder),
            encode_header(header),
            point.parameters,
            point.variation,
            point.trial,
            drained=point.drain,
        )
        self._runner.begin_point(logged)
        self._count += 1
        return logged
