"""What the log of a run says that is left to do, for `runs.run_experiment`. Nothing here prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.errors import UserError
from penstock.records.bodies import BodyReader
from penstock.records.header import RunHeader, Variation
from penstock.records.log import (
    SEARCH_LOAD,
    STOP_RULE,
    LoggedData,
    LoggedPhase,
    LoggedPoint,
    LoggedResume,
    RunLog,
)
from penstock.records.payloads import PayloadStore
from penstock.records.read_sections import Advance, most_processes, read_sections
from penstock.records.record import Record
from penstock.records.section import Section
from penstock.runs.observer import Observer
from penstock.runs.points import Experiment, Point, Single
from penstock.runs.read_experiment import make_experiment
from penstock.runs.stored_data import StoredData, read_again, read_stored
from penstock.schedule.phase import Phase, Resumed
from penstock.schedule.phases import make_phases
from penstock.schedule.users import UserArrivals
from penstock.secrets import REDACTED
from penstock.settings.schema import EndpointSettings, Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer


class BegunPoint(NamedTuple):
    """A point that an earlier process began and did not end."""

    logged: LoggedPoint | None
    """Its frame in the log; None if it is the whole run."""
    phases: tuple[Phase, ...] | None
    """The rest of the phase in which the run ended, and the phases after it. None if the point begins again."""
    position: int
    """Position in the order of the dataset at which the first of them starts."""


class DonePoint(NamedTuple):
    """What the log says about a point that was begun."""

    logged: LoggedPoint | None
    settings: Settings
    is_complete: bool
    facts: dict[str, Any] | None
    """What the rule of the point has found; None without a rule."""
    dataset: LoggedData | None
    """None for the first dataset of the run."""
    after_warmup: int | None
    """Position in the dataset at which profiling started, if that was after a warmup."""


class LoggedRun:
    """A run whose processes have ended, and what is left of it."""

    def __init__(self, log: RunLog, folder: str) -> None:
        """`log` is the log of the run in `folder`. Raise UserError if a single run is complete."""
        self.header = log.header
        self._path = log.folder
        self._folder = folder
        logs = [log.at_point(point.index) for point in log.points] or [log]
        last = logs[-1]
        rest = _Rest(last)
        if rest.is_complete and last is log:
            raise UserError(
                f"The run in {folder} has sent all its requests; `penstock report {folder}` writes its report."
                if rest.missing_reports
                else f"The run in {folder} is complete: there is nothing to resume."
            )
        self.points = [_done_point(each, is_complete=each is not last or rest.is_complete) for each in logs]
        self.count = len(log.points)
        self.begun = None if rest.is_complete else BegunPoint(last.point, rest.phases, rest.position)
        self.position = rest.position
        """Where the last point ended in the order of its dataset."""
        part = (last if last.covered_phases else log).last_part
        self.part = LoggedResume(
            begin=rest.end or _end(logs),
            end=0,
            first_phase=len(log.phases),
            first_worker=part.first_worker + part.workers,
            workers=part.workers,
            conversations=len(rest.unfinished),
            missing_reports=rest.missing_reports,
        )
        """The part of the run that begins now."""

    def find(self, point: Point) -> DonePoint | None:
        """Return what the log says about a point; None if it was not begun."""
        folder = None if point.alone else os.path.relpath(point.settings.output.folder, self._folder)
        return next((done for done in self.points if (done.logged and done.logged.folder) == folder), None)

    def first_dataset(self, settings: Settings, tokenizer: LazyTokenizer, observer: Observer) -> StoredData:
        """Return the dataset of the first point. Raise UserError if it was not read to its end and has changed since."""
        if self.header.conversations is None:
            return read_again(self._path, self.header, settings, tokenizer, observer)
        return read_stored(self._path, LoggedData("", tuple(self.header.payload_files)), self.header)

    def datasets(self) -> list[tuple[Settings, StoredData]]:
        """Return the datasets of the points except for the first one, with the settings of a point that has it."""
        stored: dict[LoggedData, tuple[Settings, StoredData]] = {}
        for point in self.points:
            if point.dataset is not None and point.dataset.folder and point.dataset not in stored:
                stored[point.dataset] = point.settings, read_stored(self._path, point.dataset, self.header)
        return list(stored.values())


class _Rest:
    """What is left of a point, or of a single run."""

    def __init__(self, log: RunLog) -> None:
        self.phases: tuple[Phase, ...] | None = None
        self.position = 0
        self.end = 0
        """End of the last record, in ns from the epoch."""
        self.unfinished: Sequence[int] = ()
        self.missing_reports = 0
        self.is_complete = False
        if not log.covered_phases:
            return
        last = log.covered_phases[-1]
        sent = _Sent(log)
        with BodyReader(log) as reader:
            read = partial(_Sent.read, log, reader.payloads)
            for of_section in read_sections(log.sections(), read, processes=most_processes()):
                sent.merge(of_section)
            for progress in sent.progress.values():
                progress.end_trees(reader.payloads)
            planned = _planned(log, several_turns=len(reader.payloads) > reader.payloads.conversations)
        self.end = max(sent.times[phase.index].end for phase in log.covered_phases)
        resumed = _resumed(sent.progress[last.kind], last, sent.times[last.index])
        kinds = {decision.kind for decision in log.decisions() if decision.phase == last.index}
        self.missing_reports, stopped = _reports(log, last)
        number = next(number for number, phase in enumerate(planned) if phase.kind == last.kind)
        begun = planned[number].starting_at(last.load.get("first", 0))
        self.position = begun.first + -(-resumed.next_number // begun.servers.copies)
        if log.header.settings.experiment.find_max is not None:
            # What a search observes in an interrupted load decides nothing: the load begins again.
            self.is_complete = SEARCH_LOAD in kinds
            return
        rest = list(planned[number + 1 :])
        if (self.missing_reports or stopped) and STOP_RULE not in kinds:
            continued = begun.continued(resumed, sent.progress[last.kind].requests)
            if continued.requests != 0 and continued.duration_s != 0:
                rest.insert(0, continued)
                self.position = begun.first
                self.unfinished = resumed.unfinished
        self.phases = tuple(rest)
        self.is_complete = not rest


def _planned(log: RunLog, *, several_turns: bool) -> list[Phase]:
    """Return the phases of a point, or of a single run, as they were planned."""
    header = log.header
    point = 0 if log.point is None else log.point.index
    phases = make_phases(
        header.settings.load,
        header.settings.warmup,
        synthetic=header.dataset == "synthetic",
        seed=header.seed,
        servers=header.servers,
        several_turns=several_turns,
    )
    return [replace(phase, point=point) for phase in phases]


def _done_point(log: RunLog, *, is_complete: bool) -> DonePoint:
    facts = [decision.values for decision in log.decisions(SEARCH_LOAD)]
    phases = log.covered_phases
    warmed_up = len({phase.kind for phase in phases}) > 1
    return DonePoint(
        log.point,
        log.header.settings,
        is_complete,
        facts[-1] if facts else None,
        phases[-1].data if phases else None,
        phases[-1].load.get("first", 0) if warmed_up else None,
    )


def _end(logs: Sequence[RunLog]) -> int:
    """Return the end of the last record, if the last point has none."""
    return _Rest(logs[-2]).end if len(logs) > 1 else 0


class _TreeRequests:
    """The requests of a session that is a tree."""

    def __init__(self, conversation: int) -> None:
        self.conversation = conversation
        self.replied: set[int] = set()
        """The turns after which the tree goes on."""
        self.failed: set[int] = set()

    def merge(self, other: _TreeRequests) -> None:
        self.replied |= other.replied
        self.failed |= other.failed


class _Progress:
    """The progress of the phases of one kind."""

    def __init__(self) -> None:
        self.trees: dict[int, _TreeRequests] = {}
        """The requests of each session that is a tree."""
        self._requests = 0
        self._open: dict[int, int] = {}
        """Records of sessions without their last turn, by session."""
        self.finished = bytearray()
        """1 for each session that has ended, by its number."""

    @property
    def requests(self) -> int:
        """The requests of the sessions that have ended."""
        return self._requests - sum(count for number, count in self._open.items() if not self.finished[number])

    def add(self, request: Record, ends: bool) -> None:
        self._requests += 1
        number = request.number
        if number >= len(self.finished):
            self.finished.extend(bytes(number + 1 - len(self.finished)))
        if ends:
            self.finished[number] = 1
            self._open.pop(number, None)
        else:
            self._open[number] = self._open.get(number, 0) + 1

    def add_to_tree(self, request: Record) -> None:
        tree = self.trees.setdefault(request.number, _TreeRequests(request.conversation))
        replied = request.failure is None or request.cancelled
        (tree.replied if replied else tree.failed).add(request.turn)
        self.add(request, ends=False)

    def end_trees(self, payloads: PayloadStore) -> None:
        """Note which trees have ended. Call this after the last record; a tree that was cut begins again."""
        for number, sent in self.trees.items():
            tree = payloads.tree(sent.conversation)
            if tree is not None and tree.is_finished(sent.replied, sent.failed):
                self.finished[number] = 1
                self._open.pop(number, None)

    def merge(self, other: _Progress) -> None:
        self._requests += other._requests
        for session, sent in other.trees.items():
            self.trees.setdefault(session, _TreeRequests(sent.conversation)).merge(sent)
        for number, count in other._open.items():
            self._open[number] = self._open.get(number, 0) + count
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
        load = log.header.settings.load
        cancels = load.cancellation_percent is not None
        users = None if load.users is None else UserArrivals(load.users, load.user_rate or 1.0)
        add = [(sent.times[phase.index].add, sent.progress[phase.kind].add) for phase in log.phases]
        for request in section.records(merged=False):
            add_times, add_request = add[request.phase]
            add_times(request)
            if request.cancelled and not cancels:
                continue
            if request.root_id is not None:
                sent.progress[log.phases[request.phase].kind].add_to_tree(request)
            else:
                add_request(request, not several_turns or _ends_conversation(payloads, users, request))
        return sent

    def merge(self, other: _Sent) -> None:
        for times, more in zip(self.times, other.times, strict=True):
            times.merge(more)
        for kind, progress in self.progress.items():
            progress.merge(other.progress[kind])


def check_resumable(log: RunLog, folder: str) -> None:
    """Raise UserError if a run cannot be resumed."""
    if not log.phases:
        raise UserError(f"{folder} holds a run that ended before its first request; start it again without --resume.")
    if log.points and not log.header.variations:
        raise UserError(
            f"{folder} holds phases of penstock.Runner, or an experiment of an earlier version; neither can be resumed."
        )
    if _has_redacted(log.header.settings.endpoint.extra):
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
    endpoint = replace(
        logged,
        urls=given.urls if urls else logged.urls,
        headers=given.headers,
        api_key=given.api_key,
        default_api_key=given.default_api_key,
        proxy=given.proxy,
    )
    output = replace(header.settings.output, folder=folder)
    return replace(header.settings, endpoint=endpoint, output=output)


def resumed_experiment(header: RunHeader, settings: Settings) -> Experiment:
    """Return the experiment that a header describes. `settings` are those of its first point, with credentials."""
    if not header.variations:
        return Single(settings, header.servers)
    variations = [
        Variation(
            replace(
                each.settings,
                endpoint=settings.endpoint,
                cluster=settings.cluster,
                output=replace(settings.output, folder=each.settings.output.folder),
            ),
            each.parameters,
        )
        for each in header.variations
    ]
    return make_experiment(variations, settings.output.folder, header.seed)


def _ends_conversation(payloads: PayloadStore, users: UserArrivals | None, request: Record) -> bool:
    if request.failure is not None and request.built is not None and not request.cancelled:
        return True  # its later turns would contain the reply
    turns = len(payloads.turns(request.conversation))
    return request.turn + 1 >= (turns if users is None else users.turns_of(request.number, turns))


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
    return log.part_of(phase).workers - len(reports), any(report.stopped for report in reports)
