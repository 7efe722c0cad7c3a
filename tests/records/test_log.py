"""Writing a log to a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock import frames
from penstock.records.log import LogWriter
from penstock.records.record import Record


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
