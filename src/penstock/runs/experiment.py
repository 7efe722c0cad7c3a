"""Running of an experiment: its points share the workers, their connections and the log. Nothing here prints."""

from __future__ import annotations

import os
import secrets
from collections.abc import Hashable
from functools import partial
from time import monotonic_ns
from typing import NamedTuple

from msgspec.structs import replace

from penstock.errors import PenstockError, UserError
from penstock.records.header import encode_header
from penstock.records.log import LEVEL, LoggedData, LoggedPoint, RunLog
from penstock.runs.execute import FailureRule, OpenedRun, StoredData, log_rule, must_end, open_run, store_data
from penstock.runs.observer import Observer
from penstock.runs.point_folder import write_reference
from penstock.runs.points import Experiment, Point, PointResult
from penstock.runs.prepare import connections_to_open, default_entries, expected_requests, phase_loads
from penstock.runs.run_folder import RunFolder
from penstock.runs.summarise import summarise, why_unusable
from penstock.schedule.phase import Phase
from penstock.schedule.phases import make_phases
from penstock.settings.redact import redacted
from penstock.settings.schema import LoadSettings, Settings, WarmupSettings

__all__ = ["FinishedExperiment", "log_phase", "run_experiment"]


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
    error: str | None = None
    try:
        with open_run(experiment.settings, folder, observer, spawn=spawn, points=experiment.largest) as opened:
            run = _PointRunner(opened, experiment.settings, observer)
            points = experiment.points()
            point: Point | None = next(points)
            while point is not None and (result := run.run(point)) is not None:
                results.append(result)
                observer.point_ended(result)
                if opened.runner.stopping or opened.runner.lost_workers:
                    break
                try:
                    point = points.send(result)
                except StopIteration:
                    point = None
    except PenstockError as failure:
        if opened is None or not opened.runner.began:
            if opened is None or not opened.runner.interrupts:
                raise
        else:
            error = f"{failure} `penstock report {experiment.settings.output.folder}` shows the records up to then."
    runner = opened.runner
    if not folder.began:
        raise UserError(runner.companion_error) if runner.companion_error is not None else KeyboardInterrupt
    if error is None and runner.lost_workers:
        error = "A worker process was lost, so the points after it were not run."
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


class _PointRunner:
    def __init__(self, opened: OpenedRun, settings: Settings, observer: Observer) -> None:
        """`settings` are those that the run was opened with: their dataset is loaded."""
        self._opened = opened
        self._observer = observer
        self._folder = settings.output.folder
        self._header = RunLog.read_header(opened.prepared.job.log)
        prepared = opened.prepared
        key = _data_key(settings)
        first = StoredData(opened.dataset, LoggedData("", prepared.job.files), prepared.bodies, prepared.conversations)
        self._stored: dict[Hashable, StoredData] = {key: first}
        """Datasets are built once and kept for later points."""
        self._loaded: tuple[Hashable, int] = key, prepared.job.seed
        self._after_warmup: dict[tuple[Hashable, int], int] = {}
        """Position in the dataset at which profiling starts, by dataset and seed."""
        self._count = 0
        self._position = 0
        """Position in the dataset at which the last point ended."""

    def run(self, point: Point) -> PointResult | None:
        """Run a point and write its artifacts; return None if the experiment has to end before it."""
        runner = self._opened.runner
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
        if point.rule is not None:  # a search goes on in the dataset, so that the server has not cached the prompts
            position = self._position
        loads = phase_loads(settings)[-len(phases) :]
        for phase, load, requests in zip(phases, loads, expected, strict=True):
            connections = connections_to_open(phase, load.arrival_rate, requests)
            running = runner.start(phase.starting_at(position), connections=connections)
            if running is None:
                return None if phase is phases[0] else self._result(point, logged, None, interrupted=True)
            rule = FailureRule(settings.load, runner.progress)
            own_rule = point.rule if phase.kind == "profiling" else None
            result = running.wait(partial(must_end, rule, own_rule))
            interrupted = result.progress.stopping > 0
            if own_rule is not None and not interrupted:
                runner.add_sample(LEVEL, monotonic_ns(), own_rule.facts())
                log_rule(runner, running, ended=rule.reason is None)
            position = self._position = result.next_position
            if phase.kind == "warmup":
                self._after_warmup[self._loaded] = position
            stopped = rule.reason
            if stopped is not None or interrupted:
                break
        return self._result(point, logged, stopped, interrupted=interrupted)

    def _load(self, settings: Settings) -> StoredData:
        """Let the workers take their conversations from the dataset of these settings, in the order of their seed."""
        key = _data_key(settings)
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


def _data_key(settings: Settings) -> Hashable:
    """Return what the dataset of a point depends on, of all that can differ between the points of an experiment."""
    data = settings.input
    if data.file is not None and not data.output_tokens_stddev:
        data = replace(data, seed=0)  # it decides the order only
    return data, default_entries(settings), settings.load.schedule
