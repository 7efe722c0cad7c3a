"""Writing a log to a full disk, and reading a damaged one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock import frames
from penstock.records.log import LogWriter, RunLog
from penstock.records.record import Record
from support.records import make_record
from support.runs import write_log


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
        assert len(list(frames.read(file))) == 4
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
    assert [r.number for r in log.records()] == [0, 2, 3, 4]
    assert (log.torn_bytes, log.skipped_places, log.skipped_bytes) == (0, 1, second)
    assert log.record_count() == 4
    log.close()
