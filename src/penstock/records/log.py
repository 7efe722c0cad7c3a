"""The append-only log of a run, from which every artifact is derived.

A log is a folder:

    run.json        the header, see `records.header`; written before the first request
    payloads.*      the request bodies, see `records.payloads`
    runner.log      frames of the runner: the points of an experiment, the phases, decisions, telemetry, workers that were
                    lost, the places where the run was resumed, and the nodes of a cluster
    worker-N.log    frames of worker N: for each phase its records, then its report
    replies-N.bin   the replies to worker N, if the export level asks for them, see `records.raw_replies`

A killed worker can leave an incomplete frame at the end of its file. Reading stops before it, and tells how many bytes were
lost and whether they can contain requests (`records.section.Damage`). Damaged frames before the end are skipped and counted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from penstock import frames
from penstock.errors import UserError
from penstock.records.frame_kinds import DECISION, LOST, NODE, PHASE, POINT, RECORD, REPORT, RESUME, SAMPLE
from penstock.records.header import LOG_FORMAT, LogVersion, RunHeader, decode_header, encode_header
from penstock.records.nodes import LoggedNode
from penstock.records.record import Record
from penstock.records.section import Damage, Ranges, Section, cut, read_frames
from penstock.records.worker_report import WorkerReport
from penstock.settings.schema import Parameter

UNTIL, OVERLOAD, STOP_RULE, SEARCH_LOAD = "until", "overload", "stop_rule", "search_load"
"""Kinds of decisions: the outcome of `--until`; the overload that ended a phase; the end of a phase by a rule, which makes it
complete; and what a search observed at a load."""
INTERRUPTED, FAILURES, INPUT_ERROR = "interrupted", "failures", "input_error"
"""Kinds of decisions that end a run or point early: by the user, because too many requests failed, and because of an error in
the input files. The value `reason` of the last two is a sentence."""
_RUNNER_FILE = "runner.log"
_FLUSH_BYTES = 1 << 18
SECTION_BYTES = 16 << 20
"""The records of about 35,000 requests, whose report takes a second or two."""


class LoggedData(msgspec.Struct, frozen=True):
    """A dataset that replaced the first one."""

    folder: str
    """Folder of its payload store, within the log."""
    files: tuple[str, ...] = ()
    """The user's files from which bodies are read."""


class LoggedPoint(msgspec.Struct, frozen=True):
    """A point of an experiment: a run of its own, with its own settings, on the workers that all points share."""

    index: int
    label: str
    """Name of the point, such as `concurrency_16` or `run_0002`."""
    folder: str
    """Its artifact folder, relative to that of the experiment."""
    header: bytes
    """The header that its log would have if it were a single run, as in `run.json`."""
    parameters: dict[str, Parameter] = {}
    """The values of a sweep, by the names of the parameters."""
    variation: int = 0
    """Which combination of these values it is."""
    trial: int = 0
    """Which of the repeated runs it is."""
    offsets: tuple[int, ...] = ()
    """For each worker, the size of its file when the point began: the records of earlier points need not be read."""
    drained: bool = True
    """False if requests of the point before it were still in flight when it began: their records come after its begin."""


def variation_label(parameters: Mapping[str, Parameter]) -> str:
    """Return the name of a combination of values, such as `concurrency_16`, as a folder can have it; `base` without any, as in
    AIPerf. A scenario has its own name."""
    return "_".join(_parameter_label(name, value) for name, value in parameters.items()) or "base"


def _parameter_label(name: str, value: Parameter) -> str:
    if not isinstance(value, str):
        return f"{name}_{value:.15g}"
    text = _UNUSUAL.sub("-", value).strip("-.")[:_MAX_LABEL] or "value"
    return text if name == "scenario" else f"{name}_{text}"


_UNUSUAL = re.compile(r"[^\w.]+")
_MAX_LABEL = 80


class LoggedPhase(msgspec.Struct, frozen=True):
    """A phase that was started."""

    index: int
    name: str
    kind: str
    """`warmup` or `profiling`."""
    point: int = 0
    """Which point of an experiment it measures."""
    start: int = 0
    """When it began, in ns from the epoch."""
    load: dict[str, Any] = {}
    """The fields of the schedule's `Phase`."""
    data: LoggedData | None = None
    """The dataset, if it is not the first one."""

    @property
    def open_loop(self) -> bool:
        """True if times were given for the requests, instead of sending when an earlier one has ended."""
        return self.load.get("arrivals") is not None

    @property
    def concurrency(self) -> int | None:
        """The limit of active conversations; None if there was none or if it changed."""
        return (self.load.get("slots") or {}).get("value")

    @property
    def requests(self) -> int | None:
        return self.load.get("requests")


class LostWorker(msgspec.Struct, frozen=True):
    """A worker whose process ended during the run."""

    worker: int
    phase: int
    """Index of the phase that it was in."""
    at: int
    """When its end was noticed, in ns from the epoch."""
    how: str
    """What ended it, such as `was killed by signal 9`."""


class LoggedResume(msgspec.Struct, frozen=True):
    """A place where the run was resumed, with new workers, after its processes had ended. Nothing was sent from `begin` to
    `end`."""

    begin: int
    """End of the last record before, in ns from the epoch."""
    end: int
    """In ns from the epoch."""
    first_phase: int
    """Index of the first phase after it."""
    first_worker: int
    """Number of the first worker after it."""
    workers: int
    conversations: int = 0
    """Conversations that began again at their first turn."""
    missing_reports: int = 0
    """Workers before it that did not report on their last phase, because they were killed."""


class Decision(msgspec.Struct, frozen=True):
    """What a stop rule, a search or the user decided during the run."""

    kind: str
    """One of `UNTIL`, `OVERLOAD`, `STOP_RULE`, `SEARCH_LOAD`, `INTERRUPTED`, `FAILURES` and `INPUT_ERROR`."""
    phase: int | None
    """Index of the phase that it is about, or that was started last; None before the first phase."""
    at: int
    """In ns from the epoch."""
    values: dict[str, Any]


class Sample(msgspec.Struct, frozen=True):
    """Values that were observed during the run, such as those of server metrics."""

    source: str
    at: int
    """In ns from the epoch."""
    values: dict[str, Any]


_DECISION_SOURCES = {"until": UNTIL, "stop_rule": STOP_RULE, "level": SEARCH_LOAD}
"""Sources of samples with which early versions of this log format hold decisions, and their kinds."""
_DECISION_SAMPLES = tuple(b"\x83\xa6source" + msgspec.msgpack.encode(source) for source in _DECISION_SOURCES)
"""How the samples with these sources begin."""


class RunnerLog:
    """Appends the frames of the runner. They are few, and written at once."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, _RUNNER_FILE)
        _remove_torn_frame(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def point(self, point: LoggedPoint) -> None:
        self._write(POINT, point)

    def phase(self, phase: LoggedPhase) -> None:
        self._write(PHASE, phase)

    def lost(self, worker: LostWorker) -> None:
        self._write(LOST, worker)

    def node(self, node: LoggedNode) -> None:
        self._write(NODE, node)

    def resume(self, resume: LoggedResume) -> None:
        self._write(RESUME, resume)

    def decision(self, decision: Decision) -> None:
        self._write(DECISION, decision)

    def sample(self, sample: Sample) -> None:
        self._write(SAMPLE, sample)

    def _write(self, kind: int, value: msgspec.Struct) -> None:
        data = frames.pack(kind, msgspec.msgpack.encode(value))
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


class LogWriter:
    """Appends the frames of one worker. Frames are buffered for at most `flush_ns`."""

    def __init__(
        self, folder: str, worker: int, before_flush: Callable[[], None] | None = None, flush_ns: int = 500_000_000
    ) -> None:
        """`before_flush` is called first, to write the bodies that records refer to."""
        self._flush_ns = flush_ns
        self._before_flush = before_flush
        path = os.path.join(folder, f"worker-{worker}.log")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = bytearray()
        self._flushed = time.monotonic_ns()

    def record(self, record: Record) -> None:
        self._frame(RECORD, self._encode(record))

    def report(self, report: WorkerReport) -> None:
        self._frame(REPORT, self._encode(report))

    def _frame(self, kind: int, data: bytes) -> None:
        buffer = self._buffer
        buffer += frames.pack(kind, data)
        if len(buffer) >= _FLUSH_BYTES:
            self.flush()

    def flush_if_due(self, now_ns: int) -> None:
        if now_ns - self._flushed >= self._flush_ns:
            self.flush()

    def flush(self) -> None:
        if self._before_flush is not None:
            self._before_flush()
        buffer = self._buffer
        while buffer:
            # Remove what was written immediately: if the disk is full, the next flush must not write it again.
            del buffer[: os.write(self._file, buffer)]
        self._flushed = time.monotonic_ns()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class _RunnerFrames:
    """The frames of the runner, without its samples."""

    def __init__(self, folder: str) -> None:
        self.points: list[LoggedPoint] = []
        self.phases: list[LoggedPhase] = []
        self.resumes: list[LoggedResume] = []
        self.lost: list[LostWorker] = []
        self.nodes: list[LoggedNode] = []
        self.decisions: list[Decision] = []
        kinds: dict[int, tuple[type[msgspec.Struct], list[Any]]] = {
            POINT: (LoggedPoint, self.points),
            PHASE: (LoggedPhase, self.phases),
            RESUME: (LoggedResume, self.resumes),
            LOST: (LostWorker, self.lost),
            NODE: (LoggedNode, self.nodes),
            DECISION: (Decision, self.decisions),
        }
        for kind, data in _runner_frames(folder):
            if kind in kinds:
                of, found = kinds[kind]
                found.append(msgspec.msgpack.decode(data, type=of))
            elif kind == SAMPLE and data.startswith(_DECISION_SAMPLES):
                sample = msgspec.msgpack.decode(data, type=Sample)
                decision = _DECISION_SOURCES[sample.source]
                self.decisions.append(Decision(decision, sample.values.get("phase"), sample.at, sample.values))


class RunLog:
    """Reads the log of a run or of one of its points, also after it was killed. It does not change after it was opened."""

    def __init__(
        self,
        folder: str,
        *,
        url: int | None = None,
        point: int | None = None,
        section_bytes: int = SECTION_BYTES,
        opened: RunLog | None = None,
    ) -> None:
        """With `url`, read only the records of requests to the url with this index; with `point`, only the records and
        reports of the point with this index, as if it were a single run. `section_bytes` is the size of a section; a log that
        has twice this size has several. `opened` is the same log, whose frames need not be read again."""
        self.folder = folder
        self._url = url
        self._section_bytes = section_bytes
        self._frames: _RunnerFrames = _RunnerFrames(folder) if opened is None else opened._frames
        self.header = self.read_header(folder)
        self.experiment_id = self.header.benchmark_id
        """Id of the experiment, if there are points."""
        self.points = self._frames.points
        self.point: LoggedPoint | None = None
        workers = self.header.workers
        if point is not None:
            self.point = self._find_point(point)
            self.header = decode_header(self.point.header)
        self.phases = self._frames.phases
        """All phases of the log."""
        self._parts: list[LoggedResume] = [LoggedResume(0, 0, 0, 0, workers), *self._frames.resumes]
        self.covered_phases = self._find_covered()
        """The phases whose records are read."""
        covered = [phase.index for phase in self.covered_phases]
        self.resumes = [part for part in self._parts[1:] if covered and covered[0] < part.first_phase <= covered[-1]]
        """The places at which what is read was resumed."""
        self.superseded = self._find_superseded()
        """The numbers of the sessions of a phase that began again when the run was resumed, by the index of the phase. Their
        records stay in the log and are not read."""
        self.last_part = self.part_of(self.covered_phases[-1]) if covered else self._parts[-1]
        """The part of the run in which the last phase that is read was started."""

    def at_point(self, index: int) -> RunLog:
        """Return a reader of a point."""
        return RunLog(self.folder, point=index, section_bytes=self._section_bytes, opened=self)

    def with_output(self, **changes: Any) -> RunLog:
        """Return a reader of the same log with other settings of the output."""
        other = copy(self)
        settings = self.header.settings
        output = msgspec.structs.replace(settings.output, **changes)
        other.header = msgspec.structs.replace(self.header, settings=msgspec.structs.replace(settings, output=output))
        return other

    def _find_point(self, index: int) -> LoggedPoint:
        for point in self.points:
            if point.index == index:
                return point
        raise UserError(f"{self.folder} has no point {index}; it has {len(self.points)}.")

    @staticmethod
    def read_header(folder: str) -> RunHeader:
        try:
            with open(os.path.join(folder, "run.json"), "rb") as f:
                data = f.read()
            version = msgspec.json.decode(data, type=LogVersion)
            if version.log_format == LOG_FORMAT:
                return decode_header(data)
        except FileNotFoundError:
            raise UserError(f"{folder} holds no run: there is no run.json in it.") from None
        except msgspec.MsgspecError as error:
            raise UserError(f"{folder}/run.json is not readable as a run of this version: {error}.") from None
        raise UserError(
            f"{folder} was written by Penstock {version.penstock_version}, whose log format this version does not read; "
            "use that version for it."
        )

    @staticmethod
    def read_points(folder: str) -> list[LoggedPoint]:
        """Return the points of an experiment; a single run has none."""
        return _RunnerFrames(folder).points

    @staticmethod
    def write_header(folder: str, header: RunHeader) -> None:
        path = os.path.join(folder, "run.json")
        with open(path + ".new", "wb") as f:
            f.write(encode_header(header))
        os.replace(path + ".new", path)

    # -- phases -------------------------------------------------------------------------------------------------------

    def part_of(self, phase: LoggedPhase) -> LoggedResume:
        """Return the part of the run in which a phase was started: the one before the run was first resumed, or after that."""
        return next(part for part in reversed(self._parts) if part.first_phase <= phase.index)

    def _find_covered(self) -> list[LoggedPhase]:
        """Return the phases of the point, without those that began again as a whole when the run was resumed."""
        wanted = [phase for phase in self.phases if self.point is None or phase.point == self.point.index]
        begun = {(phase.point, phase.kind): self.part_of(phase) for phase in wanted if not phase.load.get("resumed")}
        return [
            phase
            for phase in wanted
            if self.part_of(phase).first_phase >= begun.get((phase.point, phase.kind), self._parts[0]).first_phase
        ]

    def _find_superseded(self) -> dict[int, set[int]]:
        superseded: dict[int, set[int]] = {}
        for later in self.phases:
            again = (later.load.get("resumed") or {}).get("unfinished", ())
            for phase in self.phases[: later.index] if again else ():
                if (phase.point, phase.kind) == (later.point, later.kind):
                    superseded.setdefault(phase.index, set()).update(again)
        return superseded

    @property
    def nodes(self) -> list[LoggedNode]:
        """The nodes of the cluster, as they were at the end of the run; none if it ran on one machine. Those before the run was
        last resumed are left out, as in `lost_workers`."""
        nodes = {node.name: node for node in self._frames.nodes if node.workers[0] >= self.last_part.first_worker}
        return list(nodes.values())

    @property
    def lost_workers(self) -> list[LostWorker]:
        """The workers that were lost in the last part: the shares of those before it were sent then."""
        first, count = self.last_part.first_worker, self.last_part.workers
        return [worker for worker in self._frames.lost if first <= worker.worker < first + count]

    def decisions(self, kind: str | None = None) -> list[Decision]:
        """Return the decisions about the phases that are read, or those of one kind, in the order of time."""
        covered = {None, *(phase.index for phase in self.covered_phases)}
        return [
            decision
            for decision in self._frames.decisions
            if decision.phase in covered and kind in (None, decision.kind)
        ]

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of telemetry, in the order of time."""
        for kind, data in _runner_frames(self.folder):
            if kind == SAMPLE and not data.startswith(_DECISION_SAMPLES):
                yield msgspec.msgpack.decode(data, type=Sample)

    # -- records ------------------------------------------------------------------------------------------------------

    def records(self, damage: Damage | None = None) -> Iterator[Record]:
        """Yield all records, in the order of the sections. What cannot be read is added to `damage`."""
        return chain.from_iterable(section.records(damage) for section in self.sections())

    def sections(self) -> list[Section]:
        """Return readers of the parts of the log. A small log has one."""
        return [Section(ranges, self._filter()) for ranges in cut(self._ranges(), self._section_bytes)]

    def reports(self, kind: str | None = None) -> list[WorkerReport]:
        """Return the reports of the workers on the phases of a kind, or on all phases; killed workers wrote none."""
        decode = msgspec.msgpack.Decoder(WorkerReport).decode
        reports = [decode(data) for path, part in self._ranges().items() for data in read_frames(path, part, REPORT)]
        wanted = {phase.index for phase in self.covered_phases if kind is None or phase.kind == kind}
        return [report for report in reports if report.phase in wanted]

    def _filter(self) -> Callable[[Record], bool] | None:
        """Return a function that tells which records are read; None for all of them."""
        covered = {phase.index for phase in self.covered_phases}
        if self._url is None and not self.superseded and len(covered) == len(self.phases):
            return None
        return partial(_is_read, covered, self.superseded, self._url)

    def worker_files(self) -> dict[int, str]:
        """Return the paths of the workers' files by the numbers of the workers."""
        names = [name for name in os.listdir(self.folder) if name.startswith("worker-") and name.endswith(".log")]
        numbers = sorted(int(name[7:-4]) for name in names)
        return {number: os.path.join(self.folder, f"worker-{number}.log") for number in numbers}

    def _ranges(self) -> Ranges:
        files = self.worker_files()
        if self.point is None:
            return dict.fromkeys(files.values(), (0, None))
        parts = {part.first_worker: part for part in map(self.part_of, self.covered_phases)}
        workers = [part.first_worker + n for part in parts.values() for n in range(part.workers)]
        return {files[worker]: self._range(worker, self.point) for worker in workers if worker in files}

    def _range(self, worker: int, own: LoggedPoint) -> tuple[int, int | None]:
        """Return where the frames of a point begin and end in the file of a worker; None for the end of the file."""
        starts = [point.offsets[worker] for point in self.points if point.drained and worker < len(point.offsets)]
        begin = own.offsets[worker] if worker < len(own.offsets) else 0
        return begin, min((start for start in starts if start > begin), default=None)


def _is_read(covered: set[int], superseded: Mapping[int, set[int]], url: int | None, record: Record) -> bool:
    return (
        record.phase in covered and url in (None, record.url) and record.number not in superseded.get(record.phase, ())
    )


def _runner_frames(folder: str) -> Iterator[tuple[int, bytes]]:
    path = os.path.join(folder, _RUNNER_FILE)
    if os.path.exists(path):
        with open(path, "rb", buffering=1 << 16) as file:
            yield from frames.Reader(file)  # ends before an incomplete frame


def _remove_torn_frame(path: str) -> None:
    """Remove an incomplete frame that a killed run left at the end of the file: no frame after it could be read."""
    if not os.path.exists(path):
        return
    with open(path, "rb", buffering=1 << 16) as file:
        reader = frames.Reader(file)
        for _ in reader:
            pass
    if reader.left:
        os.truncate(path, os.path.getsize(path) - reader.left)
