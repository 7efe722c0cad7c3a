"""Running of an experiment: its points share the workers, their connections and the log. Nothing here prints."""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable
from functools import partial
from time import monotonic_ns
from typing import NamedTuple

from msgspec.structs import replace

from penstock.datasets.dataset import Dataset
from penstock.errors import PenstockError, UserError
from penstock.records.header import encode_header
from penstock.records.log import INTERRUPTED, SEARCH_LOAD, LoggedData, LoggedPoint, RunLog
from penstock.runs.execute import FailureRule, OpenedRun, StoredData, log_end, log_rule, must_end, open_run, store_data
from penstock.runs.observer import Observer
from penstock.runs.point_folder import write_reference
from penstock.runs.points import Experiment, Point, PointResult
from penstock.runs.prepare import connections_to_open, default_entries, expected_requests, phase_loads
from penstock.runs.run_folder import RunFolder
from penstock.runs.runner import RunningPhase, RunProgress
from penstock.runs.summarise import summarise, why_unusable
from penstock.schedule.phase import Phase
from penstock.schedule.phases import make_phases
from penstock.settings.redact import redacted
from penstock.settings.schema import LoadSettings, Settings, WarmupSettings

__all__ = ["FinishedExperiment", "data_key", "log_phase", "run_experiment"]

_LEAD_S = 0.6


class FinishedExperiment(NamedTuple):
    results: list[PointResult]
    """Results of the points that were started."""
    interrupts: int
    """How often the user interrupted it."""
    error: str | None = None
    """Why it ended before its last point, unless it was interrupted."""


def run_experiment(
    experiment: Experiment, folder: RunFolder, observer: Observer | None = None, *, spawn: bool = False
) -> FinishedExperiment:
    """Run the points of an experiment and write the artifacts of each; raise an exception if it ends before its first request.

    A point that fails does not end the others. If the experiment has to end early, the points that are done are kept."""
    observer = observer or Observer()
    results: list[PointResult] = []
    opened: OpenedRun | None = None
    run: _PointRunner | None = None
    error: str | None = None
    unsent = False
    try:
        with open_run(experiment.settings, folder, observer, spawn=spawn, points=experiment.largest) as opened:
            run = _PointRunner(opened, experiment.settings, observer)
            points = experiment.points()
            point: Point | None = next(points)
            while point is not None and (result := run.run(point)) is not None:
                if result.outcome is None:
                    results.append(result)
                observer.point_ended(result)
                if opened.runner.stopping:
                    break
                try:
                    point = points.send(result)
                except StopIteration:
                    point = None
                if opened.runner.lost_workers:
                    unsent = point is not None
                    break
            run.end_level()
    except PenstockError as failure:
        if opened is None or not opened.runner.began:
            if opened is None or not opened.runner.interrupts:
                raise
        else:
            error = f"{failure} `penstock report {experiment.settings.output.folder}` shows the records up to then."
    runner = opened.runner
    if not folder.began:
        raise UserError(runner.companion_error) if runner.companion_error is not None else KeyboardInterrupt
    if run is not None:
        results += run.report_levels()
    if error is None and runner.lost_workers:
        error = f"A worker process was lost{', so the points after it were not run' if unsent else ''}."
    return FinishedExperiment(results, runner.interrupts, error or runner.companion_error)


def log_phase(opened: OpenedRun, number: int, load: LoadSettings, phase: Phase) -> LoggedPoint:
    """Log a phase as a point of its own, with the settings of the run except for the load."""
    header = RunLog.read_header(opened.prepared.job.log)
    header = replace(
        header,
        settings=replace(header.settings, load=load),
        concurrency=None if phase.slots is None else phase.slots.maximum,
        requests=phase.requests,
    )
    label = f"phase_{number}"
    logged = LoggedPoint(number, label, label, encode_header(header))
    opened.runner.begin_point(logged)
    return logged


class _RunningLevel(NamedTuple):
    """A level of a search that sends until the next one begins."""

    point: Point
    logged: LoggedPoint
    running: RunningPhase
    sent_before: int
    """Requests of all phases before it."""

    def next_position(self, progress: RunProgress) -> int:
        """Return a position in the dataset that the level has hardly reached when the next one begins. The counts are up to
        0.1 s old, and the next level begins up to 0.5 s later."""
        sent = progress.sent - self.sent_before
        seconds = max(0.1, (monotonic_ns() - self.running.began) / 1e9)
        return self.running.phase.first + sent + round(_LEAD_S * sent / seconds)


class _EndedLevel(NamedTuple):
    point: Point
    logged: LoggedPoint
    position: int
    """Where it ended in the dataset."""
    failed: str | None
    """Why it could not go on."""
    interrupted: bool


class _PointRunner:
    def __init__(self, opened: OpenedRun, settings: Settings, observer: Observer) -> None:
        """`settings` are those that the run was opened with: their dataset is loaded."""
        self._opened = opened
        self._observer = observer
        self._folder = settings.output.folder
        self._header = RunLog.read_header(opened.prepared.job.log)
        prepared = opened.prepared
        key = data_key(settings, opened.dataset)
        first = StoredData(opened.dataset, LoggedData("", prepared.job.files), prepared.bodies, prepared.conversations)
        self._stored: dict[Hashable, StoredData] = {key: first}
        """Datasets are built once and kept for later points."""
        self._loaded: tuple[Hashable, int] = key, prepared.job.seed
        self._after_warmup: dict[tuple[Hashable, int], int] = {}
        """Position in the dataset at which profiling starts, by dataset and seed."""
        self._count = 0
        self._level: _RunningLevel | None = None
        """A level of a search that sends until the next one begins."""
        self._levels: list[_EndedLevel] = []
        """Levels whose reports are not written yet."""

    def run(self, point: Point) -> PointResult | None:
        """Run a point and write its artifacts; return None if the experiment has to end before it."""
        runner = self._opened.runner
        if point.drain:
            self.end_level()
            runner.pause(point.pause_s)
        if runner.stopping:
            return None
        settings = replace(point.settings, endpoint=self._opened.settings.endpoint)  # with the URLs of mock servers
        try:
            stored = self._load(settings)
        except UserError as error:
            return PointResult(point, None, str(error))
        if runner.stopping:
            return None
        phases = self._phases(point, settings, stored)
        logged = self._log(point, settings, stored, phases[-1])
        expected = expected_requests(phases, stored.bodies, stored.dataset.turns, settings.input.sampling)
        self._observer.point_begins(point, phases, expected)
        stopped: str | None = None
        interrupted = False
        # A run that leaves the warmup out sends the same prompts as the one that had it.
        position = 0 if point.warmup else self._after_warmup.get(self._loaded, 0)
        loads = phase_loads(settings)[-len(phases) :]
        for phase, load, requests in zip(phases, loads, expected, strict=True):
            connections = connections_to_open(phase, load.arrival_rate, requests)
            if point.rule is not None and phase.kind == "profiling":
                return self._run_level(point, logged, phase, connections, position)
            running = runner.start(phase.starting_at(position), connections=connections)
            if running is None:
                if phase is phases[0]:
                    return None
                runner.log_decision(INTERRUPTED)
                return self._result(point, logged, None, interrupted=True)
            rule = FailureRule(settings.load, runner.progress)
            result = running.wait(rule.is_met)
            position = result.next_position
            if phase.kind == "warmup":
                self._after_warmup[self._loaded] = position
            interrupted = result.progress.stopping > 0
            stopped = rule.reason
            log_end(runner, running, stopped, interrupted=interrupted)
            if stopped is not None or interrupted:
                break
        return self._result(point, logged, stopped, interrupted=interrupted)

    def _run_level(
        self, point: Point, logged: LoggedPoint, phase: Phase, connections: int, position: int
    ) -> PointResult | None:
        """Run a level of a search until its rule is met, and let it send until the next one begins."""
        assert point.rule is not None
        runner, before = self._opened.runner, self._level
        if point.slots is not None:
            phase = replace(phase, slots=point.slots)
        if self._levels:  # go on in the dataset, so that the server has not cached the prompts
            position = self._levels[-1].position if before is None else before.next_position(runner.progress)
        failures = FailureRule(point.settings.load, runner.progress)
        running = runner.start(phase.starting_at(position), drain=before is None, connections=connections)
        if running is None:
            return None
        self._level = _RunningLevel(point, logged, running, runner.progress.sent)
        if before is not None:
            self._end(before)
        running.watch(partial(must_end, failures, point.rule))
        if failures.reason is not None or runner.stopping or running.done:
            self.end_level(failures.reason)
        return PointResult(point, None, outcome=point.rule.outcome())

    def end_level(self, failed: str | None = None) -> None:
        """End the level that is still sending. `failed` says why it could not go on."""
        level, self._level = self._level, None
        if level is not None:
            if not level.running.done:
                level.running.stop()
            self._end(level, failed)

    def _end(self, level: _RunningLevel, failed: str | None = None) -> None:
        """Wait until a level sends no more; its requests may still be in flight."""
        runner = self._opened.runner
        result = level.running.wait()
        interrupted = result.progress.stopping > 0
        if level.point.rule is not None and not interrupted:
            runner.log_decision(SEARCH_LOAD, level.point.rule.facts(), level.running.index)
        log_rule(runner, level.running, ended=failed is None and not runner.interrupts)
        log_end(runner, level.running, failed, interrupted=interrupted)
        self._levels.append(_EndedLevel(level.point, level.logged, result.next_position, failed, interrupted))

    def report_levels(self) -> list[PointResult]:
        """Write the artifacts of the levels of a search, and return their results."""
        return [
            self._result(level.point, level.logged, level.failed, interrupted=level.interrupted)
            for level in self._levels
        ]

    def _load(self, settings: Settings) -> StoredData:
        """Let the workers take their conversations from the dataset of these settings, in the order of their seed."""
        key = data_key(settings, self._opened.dataset)
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = store_data(self._opened, settings, len(self._stored), self._observer)
        seed = settings.input.seed or 0
        if self._loaded != (key, seed):
            self._opened.runner.load(stored.data, seed)
            self._loaded = key, seed
        return stored

    def _phases(self, point: Point, settings: Settings, stored: StoredData) -> list[Phase]:
        turns = stored.dataset.turns
        made = make_phases(
            settings.load,
            settings.warmup,
            synthetic=stored.dataset.synthetic,
            seed=settings.input.seed or 0,
            several_turns=max(turns, default=1) > 1,
        )
        wanted = [phase for phase in made if point.warmup or phase.kind == "profiling"]
        return [replace(phase, point=self._count) for phase in wanted]

    def _log(self, point: Point, settings: Settings, stored: StoredData, phase: Phase) -> LoggedPoint:
        if not point.warmup:
            settings = replace(settings, warmup=WarmupSettings())
        dataset = stored.dataset
        header = replace(
            self._header,
            benchmark_id=secrets.token_hex(6),
            settings=redacted(settings),
            dataset="synthetic" if dataset.synthetic else dataset.format or "file",
            context_mode=dataset.context_mode,
            payload_files=list(stored.data.files),
            conversations=stored.conversations,
            seed=settings.input.seed or 0,
            concurrency=None if phase.slots is None else phase.slots.maximum,
            requests=phase.requests,
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
        self._opened.runner.begin_point(logged)
        self._count += 1
        return logged

    def _result(self, point: Point, logged: LoggedPoint, stopped: str | None, *, interrupted: bool) -> PointResult:
        report = summarise(
            self._folder,
            tokenizer=self._opened.tokenizer,
            interrupted=interrupted,
            incomplete=stopped,
            show_http=point.settings.output.show_http,
            show_timeline=point.settings.output.verbose,
            point=logged.index,
            into=os.path.join(self._folder, logged.folder),
        )
        write_reference(self._folder, logged)
        return PointResult(point, report, why_unusable(report.summary, point.settings.max_error_rate))


def data_key(settings: Settings, dataset: Dataset) -> Hashable:
    """Return what the dataset of a point depends on, of all that can differ between the points of an experiment. `dataset` is
    that of another point."""
    data = settings.input
    drawn = dataset.depends_on_seed or data.output_tokens_stddev or settings.model_selection != "round_robin"
    if not drawn:
        data = replace(data, seed=0)  # it decides the order only
    return data, default_entries(settings) if dataset.synthetic else None, settings.load.schedule
