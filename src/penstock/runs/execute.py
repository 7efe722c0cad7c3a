"""Preparing and running a benchmark from its settings. Nothing here prints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.datasets import load as datasets
from penstock.datasets.dataset import Dataset
from penstock.endpoints.base import endpoint_named
from penstock.errors import RunError, UserError
from penstock.records.log import FAILURES, INTERRUPTED, STOP_RULE, UNTIL, LoggedData, LoggedPoint, LoggedResume
from penstock.runs import registry
from penstock.runs.build_payloads import build_payloads
from penstock.runs.companion import Companion
from penstock.runs.observer import Observer
from penstock.runs.prepare import Prepared, check_file_limit, check_streams, default_entries, prepare, resolve_targets
from penstock.runs.readiness import Readiness
from penstock.runs.run_folder import RunFolder
from penstock.runs.runner import Runner, RunningPhase, RunProgress
from penstock.schedule.phase import Phase
from penstock.settings.schema import LoadSettings, Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer
from penstock.workers.backend import Backend
from penstock.workers.in_process import InProcess
from penstock.workers.local_processes import ForkedWorkers, SpawnedWorkers

if TYPE_CHECKING:
    from penstock.runs.until import UntilRule
    from penstock.workers.ray_cluster import Cluster

__all__ = [
    "FailureRule",
    "FinishedRun",
    "OpenedRun",
    "StopRule",
    "StoredData",
    "connect_cluster",
    "execute",
    "execute_phases",
    "log_end",
    "log_rule",
    "mock_servers",
    "must_end",
    "open_run",
    "start_run",
    "store_data",
]

_MIN_REQUESTS = 10
"""Requests, or the concurrency if that is more, before --failed-request-threshold can end a run."""


class FinishedRun(NamedTuple):
    """A run that has ended and has no report yet."""

    settings: Settings
    tokenizer: LazyTokenizer
    prepared: Prepared
    interrupts: int
    """How often the user interrupted it."""
    input_error: str | None
    """Error in the input files that ended the run early."""
    stopped: str | None = None
    """Why a stop rule ended the run early."""


class OpenedRun(NamedTuple):
    """A run that is ready for its phases."""

    settings: Settings
    dataset: Dataset
    tokenizer: LazyTokenizer
    prepared: Prepared
    runner: Runner


def execute(
    settings: Settings,
    folder: RunFolder,
    observer: Observer | None = None,
    *,
    servers: int = 1,
    spawn: bool = False,
    companions: Sequence[Companion] = (),
) -> FinishedRun:
    """Prepare and run the benchmark; raise an exception if it ends before its first request. See `open_run`."""
    opening = open_run(settings, folder, observer, servers=servers, spawn=spawn, companions=companions)
    return execute_phases(opening, folder)


def execute_phases(
    opening: contextlib.AbstractContextManager[OpenedRun], folder: RunFolder, position: int = 0
) -> FinishedRun:
    """Open a run and execute its phases; the first one starts at `position` in the order of the dataset."""
    opened: OpenedRun | None = None
    stopped: str | None = None
    try:
        with opening as opened:
            for phase in opened.prepared.phases:
                rule = FailureRule(opened.settings.load, opened.runner.progress)
                until = _until_rule(opened, phase) if phase.kind == "profiling" else None
                running = opened.runner.start(phase.starting_at(position))
                if running is None:
                    break
                position = running.wait(partial(must_end, rule, until)).next_position
                if until is not None:
                    opened.runner.log_decision(UNTIL, until.facts(), running.index)
                    log_rule(opened.runner, running, ended=until.ended_run)
                if rule.reason is not None:
                    stopped = rule.reason
                    log_end(opened.runner, running, stopped)
                    break
            if opened.runner.interrupts:
                opened.runner.log_decision(INTERRUPTED)
    except UserError as error:
        if opened is not None and opened.runner.began:
            resume = f"`aiperf profile --resume {os.path.dirname(opened.prepared.job.log)}` sends the rest."
            raise UserError(f"{error} {_kept_records(opened)} {resume}") from None
        if opened is None or not opened.runner.interrupts:
            raise
    except RunError as error:
        if opened is None or not opened.runner.began:
            raise
        raise RunError(f"{error} {_kept_records(opened)}") from None
    runner = opened.runner
    if not folder.began:
        raise UserError(runner.companion_error) if runner.companion_error is not None else KeyboardInterrupt
    return FinishedRun(
        opened.settings, opened.tokenizer, opened.prepared, runner.interrupts, runner.companion_error, stopped
    )


def _kept_records(opened: OpenedRun) -> str:
    log = opened.prepared.job.log
    return f"The records up to then are in {log}; `penstock report {os.path.dirname(log)}` shows them."


def _until_rule(opened: OpenedRun, phase: Phase) -> UntilRule | None:
    if not opened.settings.until:
        return None
    from penstock.metrics.precision import parse_precision
    from penstock.records.log import RunLog
    from penstock.runs.until import UntilRule

    folder = opened.prepared.job.log
    earlier: list[int] = []
    if phase.resumed is not None:
        earlier = [each.index for each in RunLog(folder).phases if each.kind == phase.kind]
    return UntilRule(folder, parse_precision(opened.settings.until), earlier)


class StopRule(Protocol):
    def is_met(self, running: RunningPhase) -> bool:
        """Return whether to end the phase. It is called about every 10 ms."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what the log keeps about the rule, after the end of the phase."""
        ...


def must_end(failures: FailureRule, own: StopRule | None, running: RunningPhase) -> bool:
    """Return whether one of the rules is met."""
    return failures.is_met(running) or (own is not None and own.is_met(running))


def log_rule(runner: Runner, running: RunningPhase, *, ended: bool) -> None:
    """Log that a rule has ended a phase, which is complete although it was stopped."""
    if ended:
        runner.log_decision(STOP_RULE, phase=running.index)


def log_end(runner: Runner, running: RunningPhase, failures: str | None, *, interrupted: bool = False) -> None:
    """Log what ended a phase early: that too many requests failed, or the user."""
    if failures is not None:
        runner.log_decision(FAILURES, {"reason": failures}, running.index)
    elif interrupted:
        runner.log_decision(INTERRUPTED, phase=running.index)


class FailureRule:
    """Ends a phase when too large a share of its requests has failed (`--failed-request-threshold`)."""

    def __init__(self, load: LoadSettings, before: RunProgress) -> None:
        """`before` is the progress at the start of the phase."""
        self._limit = load.max_failed_share
        self._minimum = max(_MIN_REQUESTS, load.concurrency or 0)
        self._ended, self._failed = before.ended, before.failed
        self.reason: str | None = None
        """Why the phase was ended; None if it was not."""

    def is_met(self, running: RunningPhase) -> bool:
        if self._limit is None:
            return False
        ended, failed = running.progress.ended - self._ended, running.progress.failed - self._failed
        if ended < self._minimum or failed / ended <= self._limit:
            return False
        self.reason = (
            f"The run was ended because {failed} of its first {ended} requests failed, more than --failed-request-threshold "
            f"{self._limit:g} allows."
        )
        return True


class StoredData(NamedTuple):
    """A dataset with its payload store."""

    dataset: Dataset
    data: LoggedData
    bodies: int | None
    conversations: int | None


def store_data(opened: OpenedRun, settings: Settings, number: int, observer: Observer | None = None) -> StoredData:
    """Build the dataset that `settings.input` describes, in a folder of its own, for `Runner.load`.

    `number` counts the datasets of the run."""
    observer = observer or Observer()
    endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
    dataset = datasets.load(
        settings.input,
        default_entries(settings),
        opened.tokenizer.get,
        observer.step("Preparing prompts"),
        schedule=settings.load.recorded,
        body_key=endpoint.declaration.body_key,
    )
    name = f"data-{number}"
    folder = os.path.join(opened.prepared.job.log, name)
    os.mkdir(folder)
    stored = build_payloads(folder, settings, endpoint, dataset, (), None, in_background=False)
    return StoredData(dataset, LoggedData(name, stored.files), stored.bodies, stored.conversations)


@contextlib.contextmanager
def open_run(
    settings: Settings,
    folder: RunFolder,
    observer: Observer | None = None,
    *,
    servers: int = 1,
    spawn: bool = False,
    companions: Sequence[Companion] = (),
    points: Sequence[Settings] = (),
) -> Iterator[OpenedRun]:
    """Prepare a run, start its workers, and yield it; end the workers afterwards.

    `servers` is the number of servers that a comparison sends each conversation to. With `spawn`, workers are new
    interpreters: nothing runs in, or is forked from, the process of the caller. `points` are the settings of an experiment's
    largest points: workers are sized for them, and are child processes, so that reports are written while they wait.
    """
    observer = observer or Observer()
    spawn = spawn or settings.cluster is not None
    cluster = connect_cluster(settings)
    with mock_servers(settings) as settings:  # noqa: PLR1704 - the URLs are now those of the mock servers
        endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
        readiness = Readiness(settings, endpoint) if settings.readiness.timeout_s else None
        targets = resolve_targets(settings, endpoint, raise_limit=not spawn)
        for point in points:
            check_file_limit(point, raise_limit=not spawn)
        tokenizer = LazyTokenizer(settings.tokenizer, settings.models[0])
        if not settings.endpoint.server_token_count:
            tokenizer.check()
        dataset = datasets.load(
            settings.input,
            default_entries(settings),
            tokenizer.get,
            observer.step(datasets.task(settings.input)),
            schedule=settings.load.recorded,
            body_key=endpoint.declaration.body_key,
        )
        check_streams(settings, dataset)
        prepared = prepare(
            folder.log,
            settings,
            endpoint,
            targets,
            dataset,
            observer.step(f"Reading {dataset.name}"),
            prompt_tokenizer=tokenizer.identity,
            servers=servers,
            in_caller=not spawn,
            points=points,
            cpus=[] if cluster is None else [node.cpus for node in cluster.nodes],
        )
        observer.prepared(settings, endpoint, dataset, tokenizer, prepared)
        outdated = _outdated_artifacts(settings, folder, experiment=bool(points))
        if readiness is not None:
            try:
                readiness.wait(observer.waiting)
            finally:
                observer.waited()
            # Which address of a host accepts connections was not known before.
            prepared.targets = resolve_targets(settings, endpoint, raise_limit=not spawn)
        with start_run(
            settings,
            folder,
            observer,
            dataset,
            tokenizer,
            prepared,
            outdated=outdated,
            spawn=spawn,
            in_child=bool(points),
            companions=companions,
            cluster=cluster,
        ) as opened:
            yield opened


@contextlib.contextmanager
def start_run(
    settings: Settings,
    folder: RunFolder,
    observer: Observer,
    dataset: Dataset,
    tokenizer: LazyTokenizer,
    prepared: Prepared,
    *,
    outdated: Sequence[str] = (),
    spawn: bool = False,
    in_child: bool = False,
    companions: Sequence[Companion] = (),
    resume: LoggedResume | None = None,
    cluster: Cluster | None = None,
) -> Iterator[OpenedRun]:
    """Start the workers of a prepared run, and yield it; end the workers afterwards."""
    notes = _tell_notes(prepared, observer)

    def begin() -> None:
        observer.begin()
        folder.begin(outdated)

    beside = [*registry.companions(settings, prepared), *companions]
    runner = Runner(
        _backend(prepared, spawn=spawn, in_child=in_child or bool(beside or settings.watches_records), cluster=cluster),
        folder.log,
        epoch=prepared.epoch,
        companions=beside,
        on_begin=begin,
        on_progress=observer.progress,
        on_sample=observer.sample,
        resume=resume,
    )
    with observer.running(runner), runner:
        yield OpenedRun(settings, dataset, tokenizer, prepared, runner)
    observer.progress(runner.progress)
    observer.finished()
    _tell_notes(prepared, observer, notes)


def connect_cluster(settings: Settings) -> Cluster | None:
    """Connect to the cluster of the settings, before prompts are generated."""
    if settings.cluster is None:
        return None
    from penstock.workers.ray_cluster import connect

    return connect(settings.cluster)


def _backend(prepared: Prepared, *, spawn: bool, in_child: bool, cluster: Cluster | None) -> Backend:
    if cluster is not None:
        from penstock.workers.ray_cluster import RayWorkers

        return RayWorkers(cluster, prepared.job, prepared.epoch, prepared.workers, prepared.open_files)
    if spawn:
        return SpawnedWorkers(prepared.job, prepared.epoch, prepared.workers, prepared.open_files)
    if prepared.workers == 1 and not in_child:
        return InProcess(prepared.job, prepared.targets, prepared.epoch)
    return ForkedWorkers(prepared.job, prepared.targets, prepared.epoch, prepared.workers)


def _tell_notes(prepared: Prepared, observer: Observer, told: Sequence[str] = ()) -> list[str]:
    """Pass notes about the input files and of companions to the observer, except for those in `told`; return all notes."""
    notes = prepared.notes
    for note in notes:
        if note not in told:
            observer.note(note)
    return notes


def _outdated_artifacts(settings: Settings, folder: RunFolder, *, experiment: bool) -> list[str]:
    """Return the paths of this run's artifacts and those of the run that it replaces, without the input file.

    Raise UserError if the run would overwrite its input file.
    """
    from penstock.records.log import RunLog
    from penstock.reports.artifacts import Artifacts

    source = os.path.realpath(settings.input.file) if settings.input.file else ""
    output = settings.output.folder
    paths = Artifacts.of(output, RunLog.read_header(folder.log)).every
    inside = source.startswith(os.path.join(os.path.realpath(output), ""))
    names = {os.path.basename(path) for path in paths}
    if source in map(os.path.realpath, paths) or (experiment and inside and os.path.basename(source) in names):
        raise UserError(
            f"The run would overwrite its own input file, {settings.input.file}; choose another --artifact-dir."
        )
    if folder.previous_log is not None:
        with contextlib.suppress(UserError):  # the log of another version, whose artifacts are not known
            paths += Artifacts.of(output, RunLog.read_header(folder.previous_log)).every
            paths += _artifacts_of_points(output, RunLog.read_points(folder.previous_log))
    return [path for path in dict.fromkeys(paths) if os.path.realpath(path) != source]


def _artifacts_of_points(folder: str, points: Sequence[LoggedPoint]) -> tuple[str, ...]:
    """Return the paths of all files that the experiment in `folder` may have written."""
    if not points:
        return ()
    # These import the whole report, which takes 0.3 s.
    from penstock.runs.experiment_report import aggregate_files
    from penstock.runs.point_folder import artifacts_of_points

    return (*artifacts_of_points(folder, points), *aggregate_files(folder, points))


@contextlib.contextmanager
def mock_servers(settings: Settings) -> Iterator[Settings]:
    """Start a mock server for each mock:// URL and yield settings with the URLs of the servers."""
    if not any(url.startswith("mock://") for url in settings.endpoint.urls):
        yield settings
        return
    from penstock.mock_server.mock_process import MockProcess, parse_mock_url

    with contextlib.ExitStack() as stack:
        urls = tuple(
            stack.enter_context(MockProcess(parse_mock_url(url))).url if url.startswith("mock://") else url
            for url in settings.endpoint.urls
        )
        endpoint = msgspec.structs.replace(settings.endpoint, urls=urls)
        yield msgspec.structs.replace(settings, endpoint=endpoint)
