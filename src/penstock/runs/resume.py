"""Resumes a run whose processes have ended: finds what is left to do in its log, and opens a run that does it. Nothing here
prints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple

import msgspec

from penstock.datasets.dataset import StoredDataset
from penstock.endpoints.base import endpoint_named
from penstock.errors import UserError
from penstock.records.bodies import BodyReader
from penstock.records.header import RunHeader
from penstock.records.log import LoggedPhase, LoggedResume, RunLog
from penstock.records.payloads import PayloadStore
from penstock.records.read_sections import Advance, most_processes, read_sections
from penstock.records.record import Record
from penstock.records.section import Section
from penstock.runs.execute import OpenedRun, connect_cluster, mock_servers, start_run
from penstock.runs.observer import Observer
from penstock.runs.prepare import (
    Prepared,
    check_file_limit,
    connections_to_open,
    expected_requests,
    phase_loads,
    resolve_targets,
)
from penstock.runs.run_folder import RunFolder
from penstock.schedule.phase import Phase, Resumed
from penstock.schedule.phases import make_phases
from penstock.secrets import REDACTED
from penstock.settings.schema import EndpointSettings, Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer
from penstock.workers.job import Job
from penstock.workers.local_processes import raise_file_limit

__all__ = ["ResumePoint", "check_resumable", "find_resume_point", "open_resumed_run", "resumed_settings"]


class ResumePoint(NamedTuple):
    """The state from which a run continues."""

    phases: tuple[Phase, ...]
    """The rest of the phase in which the run ended, and the phases after it."""
    position: int
    """Position in the order of the dataset at which the first of them starts."""
    logged: LoggedResume
    bodies: int
    conversations: int


class _Progress:
    """The progress of the phases of one kind."""

    def __init__(self) -> None:
        self.requests = 0
        self.finished = bytearray()
        """1 for each session that has ended, by its number."""

    def add(self, request: Record, ends: bool) -> None:
        self.requests += 1
        number = request.number
        if number >= len(self.finished):
            self.finished.extend(bytes(number + 1 - len(self.finished)))
        if ends:
            self.finished[number] = 1

    def merge(self, other: _Progress) -> None:
        self.requests += other.requests
        either = int.from_bytes(self.finished, "little") | int.from_bytes(other.finished, "little")
        self.finished = bytearray(either.to_bytes(max(len(self.finished), len(other.finished)), "little"))


class _PhaseTimes:
    """The last times in a phase, in ns from the epoch."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.arrived = start

    def add(self, request: Record) -> None:
        # Comparisons, because two calls of max() take a third of the time of reading a record.
        self.end = max(self.end, request.end)
        if request.intended >= self.arrived:
            self.arrived = request.intended + 1

    def merge(self, other: _PhaseTimes) -> None:
        self.end = max(self.end, other.end)
        self.arrived = max(self.arrived, other.arrived)


class _Sent:
    """What a run sent, or a section of its log."""

    def __init__(self, log: RunLog) -> None:
        self.times = [_PhaseTimes(phase.start) for phase in log.phases]
        self.progress = {"warmup": _Progress(), "profiling": _Progress()}

    @classmethod
    def read(cls, log: RunLog, payloads: PayloadStore, section: Section, _advance: Advance) -> _Sent:
        sent = cls(log)
        several_turns = len(payloads) > payloads.conversations
        cancels = log.header.settings.load.cancellation_percent is not None
        add = [(sent.times[phase.index].add, sent.progress[phase.kind].add) for phase in log.phases]
        for request in section.records(merged=False):
            add_times, add_request = add[request.phase]
            add_times(request)
            if not request.cancelled or cancels:
                add_request(request, not several_turns or _ends_conversation(payloads, request))
        return sent

    def merge(self, other: _Sent) -> None:
        for times, more in zip(self.times, other.times, strict=True):
            times.merge(more)
        for kind, progress in self.progress.items():
            progress.merge(other.progress[kind])


def check_resumable(log: RunLog, folder: str) -> None:
    """Raise UserError if a run of this kind cannot be resumed."""
    header = log.header
    if log.points:
        raise UserError(f"{folder} holds an experiment with several runs; --resume goes on with a single run.")
    if not log.phases:
        raise UserError(f"{folder} holds a run that ended before its first request; start it again without --resume.")
    if (log.phases[-1].load.get("servers") or {}).get("copies", 1) > 1:
        raise UserError(f"{folder} holds a comparison of servers; --resume goes on with a run of `profile`.")
    if header.conversations is None:
        raise UserError(
            f"{folder} holds a replay whose file was still being read when the run began, so its log does not tell where the "
            "file ends; start it again without --resume."
        )
    if header.settings.load.users is not None:
        raise UserError(
            f"{folder} holds a run of --user-centric-rate, whose users cannot be resumed; start it again without --resume."
        )
    if _has_redacted(header.settings.endpoint.extra):
        raise UserError(
            f"{folder} holds a run with a secret in --extra-inputs, which the log does not contain; start it again without "
            "--resume."
        )


def _has_redacted(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_redacted, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_redacted, value))
    return isinstance(value, str) and REDACTED in value


def resumed_settings(header: RunHeader, folder: str, given: EndpointSettings, *, urls: bool) -> Settings:
    """Return the settings of the run, with the credentials in `given`, which the log does not contain, and its URLs if
    `urls`. Raise UserError if a credential is missing."""
    logged = header.settings.endpoint
    missing = [name for name, _ in logged.headers if name.lower() not in {name.lower() for name, _ in given.headers}]
    if missing:
        raise UserError(
            f"The run in {folder} sent the header {missing[0]}, whose value its log does not contain; give it again with "
            "--header."
        )
    if logged.api_key is not None and given.api_key is None:
        raise UserError(
            f"The run in {folder} sent an API key, which its log does not contain; give it again with --api-key."
        )
    if logged.proxy is not None and given.proxy is None:
        raise UserError(
            f"The run in {folder} used a proxy, whose URL its log does not contain; give it again with --proxy."
        )
    endpoint = msgspec.structs.replace(
        logged,
        urls=given.urls if urls else logged.urls,
        headers=given.headers,
        api_key=given.api_key,
        default_api_key=given.default_api_key,
        proxy=given.proxy,
    )
    output = msgspec.structs.replace(header.settings.output, folder=folder)
    return msgspec.structs.replace(header.settings, endpoint=endpoint, output=output)


def find_resume_point(log: RunLog, folder: str) -> ResumePoint:
    """Return what is left of the run. Raise UserError if that is nothing."""
    header, last = log.header, log.phases[-1]
    sent = _Sent(log)
    with BodyReader(log) as reader:
        read = partial(_Sent.read, log, reader.payloads)
        for of_section in read_sections(log.sections(), read, processes=most_processes()):
            sent.merge(of_section)
        bodies, conversations = len(reader.payloads), reader.payloads.conversations
    several_turns = bodies > conversations
    phases = make_phases(
        header.settings.load,
        header.settings.warmup,
        synthetic=header.dataset == "synthetic",
        seed=header.seed,
        several_turns=several_turns,
    )
    kind = next(number for number, phase in enumerate(phases) if phase.kind == last.kind)
    done = sent.progress[last.kind]
    begun = phases[kind].starting_at(last.load.get("first", 0))
    resumed = _resumed(done, last, sent.times[last.index])
    missing, stopped = _reports(log, last)
    rest = list(phases[kind + 1 :])
    position = begun.first
    if missing or stopped:
        continued = begun.continued(resumed, done.requests)
        if continued.requests != 0 and continued.duration_s != 0:
            rest.insert(0, continued)
    if not rest:
        raise UserError(
            f"The run in {folder} has sent all its requests; `penstock report {folder}` writes its report."
            if missing
            else f"The run in {folder} is complete: there is nothing to resume."
        )
    if rest[0].resumed is None:
        position += -(-resumed.next_number // begun.servers.copies)
    part = log.last_part
    logged = LoggedResume(
        begin=max(times.end for times in sent.times),
        end=0,
        first_phase=len(log.phases),
        first_worker=part.first_worker + part.workers,
        workers=header.workers,
        conversations=0 if rest[0].resumed is None else len(rest[0].resumed.unfinished),
        missing_reports=missing,
    )
    return ResumePoint(tuple(rest), position, logged, bodies, conversations)


def _ends_conversation(payloads: PayloadStore, request: Record) -> bool:
    if request.failure is not None and request.built is not None and not request.cancelled:
        return True  # its later turns would contain the reply
    return request.turn + 1 >= len(payloads.turns(request.conversation))


def _resumed(done: _Progress, last: LoggedPhase, times: _PhaseTimes) -> Resumed:
    before = last.load.get("resumed") or {}
    frontier = max(len(done.finished), before.get("next_number", 0))
    finished = done.finished.ljust(frontier, b"\0")
    unfinished = []
    number = finished.find(0)
    while number >= 0:
        unfinished.append(number)
        number = finished.find(0, number + 1)
    return Resumed(
        tuple(unfinished),
        frontier,
        before.get("active_ns", 0) + times.end - times.start,
        before.get("arrived_ns", 0) + times.arrived - times.start,
    )


def _reports(log: RunLog, phase: LoggedPhase) -> tuple[int, bool]:
    """Return how many workers did not report on the phase, and whether it was stopped early."""
    reports = [report for report in log.reports() if report.phase == phase.index]
    return log.last_part.workers - len(reports), any(report.stopped for report in reports)


@contextlib.contextmanager
def open_resumed_run(
    settings: Settings, folder: RunFolder, observer: Observer, point: ResumePoint
) -> Iterator[OpenedRun]:
    """Start new workers for what is left of a run, and yield it; end the workers afterwards."""
    with mock_servers(settings) as settings, _open(settings, folder, observer, point) as opened:  # noqa: PLR1704
        yield opened


def _open(
    settings: Settings, folder: RunFolder, observer: Observer, point: ResumePoint
) -> contextlib.AbstractContextManager[OpenedRun]:
    header = RunLog.read_header(folder.log)
    endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
    targets = resolve_targets(settings, endpoint)
    check_file_limit(settings)
    turns = [1] if point.bodies == point.conversations else [2]
    expected = expected_requests(point.phases, None, turns, settings.input.sampling)
    load = phase_loads(settings)[-len(point.phases)]
    preconnect = connections_to_open(point.phases[0], load.arrival_rate, expected[0])
    slots = [None if phase.slots is None else phase.slots.maximum for phase in point.phases]
    largest = None if None in slots else max(slot for slot in slots if slot is not None)
    job = Job(
        log=folder.log,
        settings=settings.endpoint,
        files=tuple(header.payload_files),
        sampling=settings.input.sampling,
        seed=header.seed,
        preconnect=preconnect,
        first_worker=point.logged.first_worker,
    )
    # The times of records go on from the epoch of the run, even if the machine was started again since.
    now, age = monotonic_ns(), time_ns() - header.epoch_wall_ns
    prepared = Prepared(
        job,
        targets,
        point.phases,
        now - max(age, point.logged.begin),
        point.logged.workers,
        raise_file_limit(largest, preconnect, point.logged.workers),
        expected,
        point.conversations,
        None,
        point.bodies,
    )
    synthetic = header.dataset == "synthetic"
    name = "synthetic" if synthetic else os.path.basename(settings.input.file or header.dataset)
    dataset = StoredDataset(name, turns, None if synthetic else header.dataset)
    tokenizer = LazyTokenizer(settings.tokenizer, settings.models[0])
    observer.prepared(settings, endpoint, dataset, tokenizer, prepared)
    return start_run(
        settings, folder, observer, dataset, tokenizer, prepared, resume=point.logged, cluster=connect_cluster(settings)
    )
