"""Start of a run: prepare it from its settings and start its workers. Nothing here prints."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.endpoints.base import endpoint_named
from penstock.errors import UserError
from penstock.records.log import LoggedPoint, RunLog
from penstock.runs.companion_table import companions
from penstock.runs.observer import Observer
from penstock.runs.phase_runner import PhaseRunner
from penstock.runs.points import Experiment
from penstock.runs.prepare import (
    Prepared,
    check_file_limit,
    check_streams,
    make_header,
    plan_phases,
    prepare,
    resolve_targets,
)
from penstock.runs.readiness import Readiness
from penstock.runs.run_folder import RunFolder
from penstock.runs.server_readings import ServerReadings, reads_metrics
from penstock.runs.stored_data import fill_store, load_dataset
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer
from penstock.workers.backend import Backend
from penstock.workers.in_process import InProcess
from penstock.workers.local_processes import ForkedWorkers, SpawnedWorkers

if TYPE_CHECKING:
    from penstock.runs.resume import LoggedRun
    from penstock.workers.ray_cluster import Cluster


_READING_S = 0.5
"""Longest time for the first reading of the servers' metrics once they are ready, if the run waits for them."""


class StartedRun(NamedTuple):
    """A run whose workers wait for their first phase."""

    settings: Settings
    """Those of the first point, with the URLs of mock servers."""
    tokenizer: LazyTokenizer
    prepared: Prepared
    runner: PhaseRunner
    logged: LoggedRun | None = None
    """What an earlier process has done, if the run is resumed."""


@contextlib.contextmanager
def start_run(
    experiment: Experiment,
    folder: RunFolder,
    observer: Observer,
    *,
    spawn: bool = False,
    logged: LoggedRun | None = None,
) -> Iterator[StartedRun]:
    """Prepare a run, start its workers, and yield it; end the workers afterwards.

    With `spawn`, workers are new interpreters: nothing runs in, or is forked from, the process of the caller. If the experiment
    has several points, workers are child processes, so that reports are written while they wait. `logged` is what the log
    says about a run that is resumed.
    """
    points = experiment.largest
    spawn = spawn or experiment.settings.cluster is not None
    cluster = _connect_cluster(experiment.settings)
    with mock_servers(experiment.settings) as settings, contextlib.ExitStack() as stack:
        endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
        readiness = Readiness(settings, endpoint) if settings.readiness.timeout_s else None
        targets = resolve_targets(settings, endpoint, raise_limit=not spawn)
        readings: list[ServerReadings] = []
        is_read = logged is None and reads_metrics(settings)
        if is_read and readiness is None:
            readings.append(stack.enter_context(ServerReadings(targets)))
        for point in points:
            check_file_limit(point, raise_limit=not spawn)
        tokenizer = LazyTokenizer(settings.tokenizer, settings.models[0])
        if not settings.endpoint.server_token_count:
            tokenizer.check()
        if logged is None:
            seed = secrets.randbits(32) if settings.input.seed is None else settings.input.seed
            dataset = load_dataset(settings, seed, tokenizer, observer)
            check_streams(settings, dataset)
            phases = plan_phases(settings, dataset, seed, experiment.servers)
            begun = phases if not spawn and not points else None
            data = fill_store(folder.log, "", settings, dataset, observer, phases=begun)
        else:
            seed = logged.header.seed
            data = logged.first_dataset(settings, tokenizer, observer)
            phases = plan_phases(settings, data.dataset, seed, experiment.servers)
        prepared = prepare(
            folder.log,
            settings,
            targets,
            data,
            phases,
            seed,
            points=points,
            in_caller=not spawn,
            cpus=[] if cluster is None else [node.cpus for node in cluster.nodes],
            resumed=None if logged is None else logged.part,
        )
        outdated: Sequence[str] = ()
        if logged is None:
            header = make_header(prepared, settings, tokenizer.identity, experiment.variations)
            RunLog.write_header(folder.log, header)
        else:
            # The times of records go on from the epoch of the run, even if the machine was started again since.
            age = time_ns() - logged.header.epoch_wall_ns
            prepared.epoch = monotonic_ns() - max(age, logged.part.begin)
        observer.prepared(settings, endpoint, tokenizer, prepared)
        if logged is None:
            outdated = _outdated_artifacts(settings, folder, experiment=bool(points))
        if readiness is not None:
            try:
                readiness.wait(observer.waiting)
            finally:
                observer.waited()
            # Which address of a host accepts connections was not known before.
            prepared.targets = resolve_targets(settings, endpoint, raise_limit=not spawn)
            if is_read:
                readings.append(stack.enter_context(ServerReadings(prepared.targets)))
                readings[0].wait(_READING_S)
        notes = _tell_notes(prepared, observer)
        beside = companions(settings, prepared)
        in_child = bool(points or beside or settings.watches_records)

        def begin() -> None:
            observer.begin()
            folder.begin(outdated)

        runner = PhaseRunner(
            _backend(prepared, spawn=spawn, in_child=in_child, cluster=cluster),
            folder.log,
            epoch=prepared.epoch,
            companions=[*readings, *beside],
            on_begin=begin,
            on_progress=observer.progress,
            on_sample=observer.sample,
            resume=None if logged is None else logged.part,
        )
        with observer.running(runner), runner:
            yield StartedRun(settings, tokenizer, prepared, runner, logged)
        observer.progress(runner.progress)
        observer.finished()
        _tell_notes(prepared, observer, notes)


def _connect_cluster(settings: Settings) -> Cluster | None:
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
