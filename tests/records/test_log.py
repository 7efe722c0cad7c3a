"""Writing a log to a full disk, and reading a damaged one or one with several points."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock import frames
from penstock.errors import UserError
from penstock.records.header import encode_header
from penstock.records.log import (
    INTERRUPTED,
    SEARCH_LOAD,
    STOP_RULE,
    UNTIL,
    Decision,
    LoggedPhase,
    LoggedPoint,
    LoggedResume,
    LogWriter,
    RunLog,
    RunnerLog,
    Sample,
)
from penstock.records.record import Record
from penstock.records.section import Damage
from support.records import make_record
from support.runs import PROFILING, make_header, write_log


def record(number: int) -> Record:
    return Record(0, number, 0, 0, 0, 0, 0, f"request {number}", "session", 0, 0)


def test_nothing_is_written_twice_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(str(tmp_path), 0)
    for number in range(3):
        writer.record(record(number))
    free_bytes = [10]
    write = os.write

    def write_partially(file: int, data: bytearray) -> int:
        if not free_bytes[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[: free_bytes[0]])
        free_bytes[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_partially)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    writer.record(record(3))
    writer.close()
    with (tmp_path / "worker-0.log").open("rb") as file:
        assert len(list(frames.Reader(file))) == 4
        assert not file.read()


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 8, 9, 40])
def test_flipped_bit_loses_one_record_and_is_counted(tmp_path: Path, offset: int) -> None:
    """The bit is in the kind, the length, the checksum or the data of the second record."""
    log = RunLog(write_log(tmp_path, [make_record(number=number) for number in range(5)]))
    file = tmp_path / "log" / "worker-0.log"
    data = bytearray(file.read_bytes())
    second = frames.HEAD.size + int.from_bytes(data[1:5], "little")
    data[second + offset] ^= 0x10
    file.write_bytes(data)
    damage = Damage()
    assert [r.number for r in log.records(damage)] == [0, 2, 3, 4]
    assert damage == Damage(skipped_bytes=second, skipped_places=1)
    (section,) = log.sections()
    assert section.frame_count() == 4


def test_point_is_read_as_a_run_of_its_own(tmp_path: Path) -> None:
    """Damage in the records of another point is not counted."""
    phases = [LoggedPhase(n, name, name, point=n // 2) for n, name in enumerate(["warmup", "profiling"] * 2)]
    records = [make_record(number=number, phase=number // 2) for number in range(8)]
    folder = write_log(tmp_path, records, phases=phases)
    file = tmp_path / "log" / "worker-0.log"
    data = bytearray(file.read_bytes())
    half = len(data) // 2  # all records have the same length
    data[20] ^= 0x10
    file.write_bytes(data)
    runner_log = RunnerLog(folder)
    for index, offset in enumerate((0, half)):
        header = encode_header(make_header(seed=index, benchmark_id=f"id {index}"))
        runner_log.point(LoggedPoint(index, f"point_{index}", f"point_{index}", header, offsets=(offset,)))
    runner_log.close()
    for index, numbers in enumerate(([1, 2, 3], [4, 5, 6, 7])):
        log = RunLog(folder, point=index)
        damage = Damage()
        assert [r.number for r in log.records(damage)] == numbers
        assert (damage.skipped_places, damage.torn_bytes) == (1 - index, 0)
        assert [phase.index for phase in log.covered_phases] == [2 * index, 2 * index + 1]
        assert (log.header.benchmark_id, log.header.settings.input.seed) == (f"id {index}", index)
    with pytest.raises(UserError, match="has no point 2; it has 2"):
        RunLog(folder, point=2)


def test_run_that_goes_on_removes_a_torn_frame_of_the_runner(tmp_path: Path) -> None:
    log = RunnerLog(str(tmp_path))
    log.phase(LoggedPhase(0, "profiling", "profiling"))
    log.close()
    path = tmp_path / "runner.log"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-3])
    log = RunnerLog(str(tmp_path))
    log.phase(LoggedPhase(1, "profiling", "profiling"))
    log.close()
    with path.open("rb") as file:
        assert len(list(frames.Reader(file))) == 2
        assert not file.read()


def test_sections_contain_the_records_in_the_same_order_as_the_log(tmp_path):
    """Also if a worker has written records long after their requests ended."""
    ends = [n if n % 10 else n - 150 for n in range(400)]
    records = [make_record(at=1_000 + end, number=n, worker=n % 2) for n, end in enumerate(ends)]
    log = RunLog(write_log(tmp_path, records), section_bytes=10_000)
    numbers = [record.number for record in log.records()]
    assert sorted(numbers) == list(range(400))
    sections = log.sections()
    assert len(sections) > 3
    assert [record.number for section in sections for record in section.records()] == numbers


def test_decisions_are_no_samples(tmp_path: Path) -> None:
    folder = write_log(tmp_path, [make_record()])
    log = RunnerLog(folder)
    log.decision(Decision(INTERRUPTED, 0, 5, {}))
    log.decision(Decision(STOP_RULE, 7, 6, {}))
    log.sample(Sample("server", 6, {"kind": "metrics"}))
    log.close()
    reader = RunLog(folder)
    assert [decision.kind for decision in reader.decisions()] == [INTERRUPTED]  # the log has no phase 7
    assert [sample.source for sample in reader.samples()] == ["server"]


def test_samples_with_which_early_versions_logged_decisions_are_decisions(tmp_path: Path) -> None:
    folder = write_log(tmp_path, [make_record()])
    log = RunnerLog(folder)
    for source, values in (("until", {"reached": True}), ("stop_rule", {"phase": 0}), ("level", {"value": 8})):
        log.sample(Sample(source, 5, values))
    log.sample(Sample("server", 6, {"kind": "metrics"}))
    log.close()
    reader = RunLog(folder)
    assert list(reader.decisions()) == [
        Decision(UNTIL, None, 5, {"reached": True}),
        Decision(STOP_RULE, 0, 5, {"phase": 0}),
        Decision(SEARCH_LOAD, None, 5, {"value": 8}),
    ]
    assert [sample.source for sample in reader.samples()] == ["server"]


def test_records_of_sessions_that_began_again_are_not_read(tmp_path: Path) -> None:
    """Session 1 had sent its first turn when the run was killed; a level of a search begins again as a whole."""
    phases = (
        PROFILING,
        replace(PROFILING, load={"resumed": {"unfinished": [1], "next_number": 2}}),
        replace(PROFILING, point=1),
        replace(PROFILING, point=1),
    )
    turns = [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1), (1, 2, 0), (2, 0, 0), (3, 0, 0)]
    records = [
        make_record(phase=phase, number=number, turn=turn, start=at) for at, (phase, number, turn) in enumerate(turns)
    ]
    path = write_log(tmp_path, records, phases=phases)
    runner = RunnerLog(path)
    for first_phase in (1, 3):
        runner.resume(LoggedResume(0, 0, first_phase, 0, 1))
    runner.close()
    log = RunLog(path)
    assert [(record.phase, record.number, record.turn) for record in log.records()] == [turns[0], *turns[2:5], turns[6]]
    assert [phase.index for phase in log.covered_phases] == [0, 1, 3]
