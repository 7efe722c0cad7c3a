"""The append-only log of a run, from which every artifact is derived.

A log is a folder:

    run.json        the header, see `records.header`; written before the first request
    payloads.*      the request bodies, see `records.payloads`
    runner.log      frames of the runner: the points of an experiment, the phases, decisions, telemetry, workers that were
                    lost, the places where the run was resumed, and the nodes of a cluster
    worker-N.log    frames of worker N: for each phase its records, then its report
    replies-N.bin   the replies to worker N, if the export level asks for them, see `records.raw_replies`

A killed worker can leave an incomplete frame at the end of its file. Reading stops before it; `RunLog` tells how many bytes
were lost and whether they can contain requests. Damaged frames before the end are skipped and counted.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any, BinaryIO, TypeVar

import msgspec

from penstock import frames
from penstock.errors import UserError
from penstock.records.header import LOG_FORMAT, LogVersion, RunHeader, decode_header, encode_header
from penstock.records.nodes import LoggedNode
from penstock.records.payloads import Payload, PayloadStore
from penstock.records.raw_replies import RawReply, ReplyReader
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport

__all__ = [
    "FAILURES",
    "INPUT_ERROR",
    "INTERRUPTED",
    "SEARCH_LOAD",
    "STOP_RULE",
    "UNTIL",
    "Decision",
    "LogWriter",
    "LoggedData",
    "LoggedPhase",
    "LoggedPoint",
    "LoggedResume",
    "LostWorker",
    "RunLog",
    "RunnerLog",
    "Sample",
    "Section",
    "variation_label",
]

T = TypeVar("T", bound=msgspec.Struct)

Section = dict[str, tuple[int, int | None]]
"""Where the frames of a section begin and end, by worker file; None for the end of the file."""

RECORD, REPORT, PHASE, LOST, SAMPLE, POINT, RESUME, NODE, DECISION = 1, 2, 3, 4, 5, 6, 7, 8, 9
_KINDS = bytes([RECORD, REPORT, PHASE, LOST, SAMPLE, POINT, RESUME, NODE, DECISION])
UNTIL, STOP_RULE, SEARCH_LOAD = "until", "stop_rule", "search_load"
"""Kinds of decisions: the outcome of `--until`; the end of a phase by a rule, which makes it complete; and what a search
observed at a load."""
INTERRUPTED, FAILURES, INPUT_ERROR = "interrupted", "failures", "input_error"
"""Kinds of decisions that end a run or point early: by the user, because too many requests failed, and because of an error in
the input files. The value `reason` of the last two is a sentence."""
_RUNNER_FILE = "runner.log"
_FLUSH_BYTES = 1 << 18
_SECTION_BYTES = 16 << 20
"""The records of about 35,000 requests, whose report takes a second or two."""
_MOST_SECTIONS = 16
_NEAR = 4_096
_WINDOW = 1 << 15
_MERGED = 256
"""Records of a worker that are sorted at a time."""
_BATCH_RECORDS = 1_024
_BATCH_STAMPS = 100_000
"""Limits of a batch, which is tokenized at once and held in memory: about 5 MB."""


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
    parameters: dict[str, int | float] = {}
    """The values of a sweep, by the names of the parameters."""
    variation: int = 0
    """Which combination of these values it is."""
    trial: int = 0
    """Which of the repeated runs it is."""
    offsets: tuple[int, ...] = ()
    """For each worker, the size of its file when the point began: the records of earlier points need not be read."""
    drained: bool = True
    """False if requests of the point before it were still in flight when it began: their records come after its begin."""


def variation_label(parameters: Mapping[str, float]) -> str:
    """Return the name of a combination of values, such as `concurrency_16`; `base` without any, as in AIPerf."""
    return "_".join(f"{name}_{value:.15g}" for name, value in parameters.items()) or "base"


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
    """One of `UNTIL`, `STOP_RULE`, `SEARCH_LOAD`, `INTERRUPTED`, `FAILURES` and `INPUT_ERROR`."""
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


class RunLog:
    """Reads a log, also that of a killed run."""

    def __init__(self, folder: str, *, url: int | None = None, point: int | None = None) -> None:
        """With `url`, read only the records of requests to the url with this index; with `point`, only the records and
        reports of the point with this index, as if it were a single run."""
        self.folder = folder
        self._url = url
        self.header = self.read_header(folder)
        self.experiment_id = self.header.benchmark_id
        """Id of the experiment, if there are points."""
        self.points = self.read_points(folder)
        self.point: LoggedPoint | None = None
        if point is not None:
            self.point = self._find_point(point)
            self.header = decode_header(self.point.header)
        self.phases: list[LoggedPhase] = list(_runner_frames(folder, PHASE, LoggedPhase))
        self._parts = [LoggedResume(0, 0, 0, 0, self.header.workers), *_runner_frames(folder, RESUME, LoggedResume)]
        self.covered_phases = self._find_covered()
        """The phases whose records are read."""
        self._superseded = self._find_superseded()
        datasets = {covered.data for covered in self.covered_phases} or {None}
        if len(datasets) > 1:
            raise UserError(f"{folder} holds phases with different datasets; each has a report in a folder of its own.")
        try:
            self.payloads = self._open_store(datasets.pop())
        except FileNotFoundError as error:
            raise UserError(f"{folder} is incomplete: {os.path.basename(error.filename)} is missing.") from None
        self.section: Section | None = None
        """One of `sections`, if only its records are read."""
        self._built: dict[int, PayloadStore] = {}
        self._replies: dict[int, ReplyReader] = {}
        self.torn_bytes = 0
        """Bytes of incomplete frames that killed workers left; valid after `records()` or `reports()` was read to its end."""
        self.torn_requests = False
        """Whether the torn bytes can contain requests. A torn report is the last frame of its file, so none follow it."""
        self.skipped_bytes = 0
        """Bytes of damaged frames that intact frames follow; valid when `torn_bytes` is."""
        self.skipped_places = 0
        """Number of places with such bytes."""

    def _find_point(self, index: int) -> LoggedPoint:
        for point in self.points:
            if point.index == index:
                return point
        raise UserError(f"{self.folder} has no point {index}; it has {len(self.points)}.")

    def _open_store(self, data: LoggedData | None) -> PayloadStore:
        if data is None:
            return PayloadStore(self.folder, self.header.payload_files)
        return PayloadStore(os.path.join(self.folder, data.folder), data.files)

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
        return list(_runner_frames(folder, POINT, LoggedPoint))

    @staticmethod
    def write_header(folder: str, header: RunHeader) -> None:
        path = os.path.join(folder, "run.json")
        with open(path + ".new", "wb") as f:
            f.write(encode_header(header))
        os.replace(path + ".new", path)

    def records(self, *, merged: bool = True) -> Iterator[Record]:
        """Yield all records. Those of one worker are in the order in which it processed the replies, which is nearly the order
        of their ends; those of several workers are merged by their ends, or follow one another."""
        self._clear_damage()
        sections = self.sections if merged and self.section is None else [self._ranges()]
        records: Iterator[Record] = chain.from_iterable(self._section_records(each, merged) for each in sections)
        if self._url is not None:
            records = (record for record in records if record.url == self._url)
        covered = {phase.index for phase in self.covered_phases}
        if self.point is not None or len(covered) < len(self.phases):
            records = (record for record in records if record.phase in covered)
        if superseded := self._superseded:
            records = (record for record in records if record.number not in superseded.get(record.phase, ()))
        return records

    def _section_records(self, section: Section, merged: bool) -> Iterator[Record]:
        decode = msgspec.msgpack.Decoder(Record).decode
        workers = [map(decode, self._read_frames(path, part, RECORD)) for path, part in section.items()]
        return _merged(workers) if merged and len(workers) > 1 else chain.from_iterable(workers)

    def batches(self) -> Iterator[list[Record]]:
        """Yield the records as `records` does, in lists of limited size whose records belong to one phase."""
        batch: list[Record] = []
        stamps = 0
        for record in self.records():
            if batch and (len(batch) >= _BATCH_RECORDS or stamps >= _BATCH_STAMPS or record.phase != batch[0].phase):
                yield batch
                batch, stamps = [], 0
            batch.append(record)
            stamps += len(record.stamps)
        if batch:
            yield batch

    def reports(self, kind: str | None = None) -> list[WorkerReport]:
        """Return the reports of the workers on the phases of a kind, or on all phases; killed workers wrote none."""
        decode = msgspec.msgpack.Decoder(WorkerReport).decode
        self._clear_damage()
        ranges = self._ranges().items()
        reports = [decode(data) for path, part in ranges for data in self._read_frames(path, part, REPORT)]
        wanted = {phase.index for phase in self.covered_phases if kind is None or phase.kind == kind}
        return [report for report in reports if report.phase in wanted]

    def part_of(self, phase: LoggedPhase) -> LoggedResume:
        """Return the part of the run in which a phase was started: the one before the run was first resumed, or after that."""
        return next(part for part in reversed(self._parts) if part.first_phase <= phase.index)

    @property
    def resumes(self) -> list[LoggedResume]:
        """The places at which what is read was resumed. The points of an experiment before and after them are not affected."""
        covered = [phase.index for phase in self.covered_phases]
        return [part for part in self._parts[1:] if covered and covered[0] < part.first_phase <= covered[-1]]

    @property
    def last_part(self) -> LoggedResume:
        """The part of the run in which the last phase that is read was started."""
        covered = self.covered_phases
        return self.part_of(covered[-1]) if covered else self._parts[-1]

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
        """Return the numbers of the sessions of a phase that began again when the run was resumed. Their records stay in the
        log and are not read."""
        superseded: dict[int, set[int]] = {}
        for later in self.phases:
            again = (later.load.get("resumed") or {}).get("unfinished", ())
            for phase in self.phases[: later.index] if again else ():
                if (phase.point, phase.kind) == (later.point, later.kind):
                    superseded.setdefault(phase.index, set()).update(again)
        return superseded

    def nodes(self) -> list[LoggedNode]:
        """Return the nodes of the cluster, as they were at the end of the run; none if it ran on one machine. Those before the
        run was last resumed are left out, as in `lost_workers`."""
        nodes = _runner_frames(self.folder, NODE, LoggedNode)
        found = {node.name: node for node in nodes if node.workers[0] >= self.last_part.first_worker}
        return list(found.values())

    def lost_workers(self) -> list[LostWorker]:
        """Return the workers that were lost in the last part: the shares of those before it were sent then."""
        part = self.last_part
        lost = _runner_frames(self.folder, LOST, LostWorker)
        return [worker for worker in lost if 0 <= worker.worker - part.first_worker < part.workers]

    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions about the phases that are read, in order of time."""
        covered = {None, *(phase.index for phase in self.covered_phases)}
        return (decision for decision in _decisions(self.folder) if decision.phase in covered)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of telemetry, in order of time."""
        samples = _runner_frames(self.folder, SAMPLE, Sample)
        return (sample for sample in samples if sample.source not in _DECISION_SOURCES)

    def entry(self, record: Record) -> Payload:
        store, number = self._payload_location(record)
        return store.entry(number)

    def body(self, record: Record) -> bytes:
        """Return the body that was sent for this record."""
        store, number = self._payload_location(record)
        return store.body(number)

    def raw_reply(self, record: Record) -> RawReply | None:
        """Return the reply to this record, if replies were kept and there is one."""
        if record.raw_reply is None:
            return None
        reader = self._replies.get(record.worker)
        if reader is None:
            reader = self._replies[record.worker] = ReplyReader(self.folder, record.worker)
        return reader.read(record.raw_reply)

    def _payload_location(self, record: Record) -> tuple[PayloadStore, int]:
        if record.built is None:
            return self.payloads, record.payload
        store = self._built.get(record.worker)
        if store is None:
            store = self._built[record.worker] = PayloadStore(self.folder, worker=record.worker)
        return store, record.built

    def worker_files(self) -> dict[int, str]:
        """Return the paths of the workers' files by the numbers of the workers."""
        names = [n for n in os.listdir(self.folder) if n.startswith("worker-") and n.endswith(".log")]
        return {
            number: os.path.join(self.folder, f"worker-{number}.log") for number in sorted(int(n[7:-4]) for n in names)
        }

    def record_count(self) -> int:
        """Count the records without decoding them."""
        self._clear_damage()
        return sum(1 for path, part in self._ranges().items() for _ in self._read_frames(path, part, RECORD))

    @property
    def sections(self) -> list[Section]:
        """Parts of the log that can be read one after the other or by several processes. A small log has one.

        The requests of a section ended before those of the next one, as far as the workers' files are in that order. Sections
        depend on the log only, so a report does not depend on the number of cores.
        """
        ranges = self._ranges()
        sizes = {path: (os.path.getsize(path) if end is None else end) - begin for path, (begin, end) in ranges.items()}
        count = min(sum(sizes.values()) // _SECTION_BYTES, _MOST_SECTIONS)
        if count < 2:
            return [ranges]
        largest = max(sizes, key=sizes.__getitem__)
        with open(largest, "rb") as file:
            search = _RecordSearch(file, ranges[largest][0], sizes[largest])
            times = sorted(search.end_of_share(number / count) for number in range(1, count))
        sections: list[Section] = [{} for _ in range(count)]
        for path, (begin, end) in ranges.items():
            with open(path, "rb") as file:
                search = _RecordSearch(file, begin, sizes[path])
                cuts = [search.position_at(time) for time in times]
            for section, edges in zip(sections, zip([begin, *cuts], [*cuts, end], strict=True), strict=True):
                section[path] = edges
        return sections

    def _ranges(self) -> Section:
        """Return the section that is read, or the parts of all workers' files as one."""
        if self.section is not None:
            return self.section
        files = self.worker_files()
        if self.point is None:
            return dict.fromkeys(files.values(), (0, None))
        parts = {part.first_worker: part for part in map(self.part_of, self.covered_phases)}
        workers = [part.first_worker + n for part in parts.values() for n in range(part.workers)]
        return {files[worker]: self._range(worker) for worker in workers if worker in files}

    def _range(self, worker: int) -> tuple[int, int | None]:
        """Return where the frames of the point begin and end in the file of a worker; None for the end of the file."""
        assert self.point is not None
        starts = [point.offsets[worker] for point in self.points if point.drained and worker < len(point.offsets)]
        own = self.point.offsets[worker] if worker < len(self.point.offsets) else 0
        return own, min((start for start in starts if start > own), default=None)

    def _read_frames(self, path: str, part: tuple[int, int | None], wanted_kind: int) -> Iterator[bytes]:
        first, end = part
        # Reports are few; records in between need not be read to find them.
        passed_over = bytes([RECORD]) if wanted_kind == REPORT else b""
        with open(path, "rb", buffering=1 << 20) as f:
            f.seek(first)
            while True:
                reader = frames.Reader(f, end, passed_over)
                for kind, data in reader:
                    if kind == wanted_kind:
                        yield data
                    elif kind not in _KINDS:  # the checksum does not cover the kind
                        self.skipped_bytes += frames.HEAD.size + len(data)
                        self.skipped_places += 1
                if not reader.left or not self._skip_damage(f, reader.left, end):
                    return

    def _clear_damage(self) -> None:
        self.torn_bytes, self.torn_requests = 0, False
        self.skipped_bytes = self.skipped_places = 0

    def _skip_damage(self, file: BinaryIO, size: int, end: int | None) -> bool:
        """Move to the next intact frame in the `size` bytes before `end`. Return False if there is none: they are torn."""
        length = file.seek(0, os.SEEK_END)
        damaged = file.seek((length if end is None else min(end, length)) - size)
        first = file.read(1)
        with mmap.mmap(file.fileno(), damaged + size, access=mmap.ACCESS_READ) as data:
            intact = frames.find(data, damaged + 1, _KINDS)
        if intact is None and end is not None and end < length:
            intact = end  # the next section or point begins there
        if intact is None:
            self.torn_bytes += size
            self.torn_requests |= first != bytes([REPORT])
            return False
        self.skipped_bytes += intact - damaged
        self.skipped_places += 1
        file.seek(intact)
        return True

    @property
    def damage(self) -> tuple[int, bool, int, int]:
        """The values of `torn_bytes`, `torn_requests`, `skipped_bytes` and `skipped_places`."""
        return self.torn_bytes, self.torn_requests, self.skipped_bytes, self.skipped_places

    @damage.setter
    def damage(self, damage: tuple[int, bool, int, int]) -> None:
        self.torn_bytes, self.torn_requests, self.skipped_bytes, self.skipped_places = damage

    def close(self) -> None:
        for store in (self.payloads, *self._built.values()):
            store.close()
        for reader in self._replies.values():
            reader.close()


def _merged(workers: Sequence[Iterator[Record]]) -> Iterator[Record]:
    """Yield the records of several workers in the order of their ends, except for those that are far from their place in the
    file of their worker."""
    chunks: list[tuple[Iterator[Record], list[Record]]] = [(worker, []) for worker in workers]
    get_end = attrgetter("end")
    while True:
        for worker, chunk in chunks:
            if len(chunk) < _MERGED // 2:
                chunk.extend(islice(worker, _MERGED))
                chunk.sort(key=get_end)
        chunks = [(worker, chunk) for worker, chunk in chunks if chunk]
        if not chunks:
            return
        limit = min(chunk[-1].end for _, chunk in chunks)
        batch = []
        for _, chunk in chunks:
            before = bisect_right(chunk, limit, key=get_end)
            batch += chunk[:before]
            del chunk[:before]
        batch.sort(key=get_end)
        yield from batch


class _RecordSearch:
    """Finds records by their ends in the file of a worker, which is nearly in that order."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file = file.fileno()
        self._begin = begin
        self._limit = begin + size
        self._decode = msgspec.msgpack.Decoder(Record).decode

    def _first_from(self, position: int) -> tuple[int, int] | None:
        """Return the position and the end of the first request at or after a position."""
        size = _WINDOW
        while position < self._limit:
            # The file is not mapped: the kernel maps megabytes around each page that is read.
            data = os.pread(self._file, min(size, self._limit - position), position)
            start = frames.find(data, 0, _KINDS)
            while start is not None and data[start] != RECORD:
                start = frames.find(data, start + 1, _KINDS)
            if start is not None:
                _, length, _ = frames.HEAD.unpack_from(data, start)
                begin = start + frames.HEAD.size
                return position + start, self._decode(data[begin : begin + length]).end
            if position + size >= self._limit:
                return None
            size *= 4
        return None

    def end_of_share(self, share: float) -> int:
        """Return the end of the request after this share of the bytes."""
        found = self._first_from(self._begin + int(share * (self._limit - self._begin)))
        return sys.maxsize if found is None else found[1]

    def position_at(self, time: int) -> int:
        """Return the position of the first request that ended at or after this time."""
        low, high = self._begin, self._limit
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = self._first_from(middle)
            if found is None or found[0] >= high or found[1] >= time:
                high = middle
            else:
                low = found[0]
        found = self._first_from(low)
        while found is not None and found[1] < time:
            found = self._first_from(found[0] + 1)
        return self._limit if found is None else found[0]


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


def _runner_frames(folder: str, kind: int, of: type[T]) -> Iterator[T]:
    path = os.path.join(folder, _RUNNER_FILE)
    if os.path.exists(path):
        decode = msgspec.msgpack.Decoder(of).decode
        with open(path, "rb", buffering=1 << 16) as file:
            for found, data in frames.Reader(file):  # ends before an incomplete frame
                if found == kind:
                    yield decode(data)


def _decisions(folder: str) -> Iterator[Decision]:
    path = os.path.join(folder, _RUNNER_FILE)
    if not os.path.exists(path):
        return
    with open(path, "rb", buffering=1 << 16) as file:
        for kind, data in frames.Reader(file):
            if kind == DECISION:
                yield msgspec.msgpack.decode(data, type=Decision)
            elif kind == SAMPLE and data.startswith(_DECISION_SAMPLES):
                sample = msgspec.msgpack.decode(data, type=Sample)
                yield Decision(_DECISION_SOURCES[sample.source], sample.values.get("phase"), sample.at, sample.values)
