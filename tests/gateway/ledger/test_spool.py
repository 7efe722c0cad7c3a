"""Tests that the spool keeps its entries when its writer is killed or the disk is full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.live_requests import live_paths, read_lost
from penstock.gateway.ledger.spool import PendingCounter, Segment, Spool, prepare_folder, segment_paths
from penstock.gateway.observe.recorder import Recorder
from support import TESTS
from support.ledger_entries import make_entry, start_worker


def ids(folder: Path) -> list[str]:
    """Return the request ids of all entries in the spool, in order."""
    request_ids = []
    for path in segment_paths(str(folder)):
        segment = Segment(path)
        request_ids += [
            msgspec.msgpack.decode(data, type=Entry).request_id for _, data in segment.read(1_000_000).frames
        ]
        segment.close()
    return request_ids


def test_entry_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(3):
        spool.append(make_entry(request_id=f"r{number}"))
        assert ids(tmp_path) == [f"r{n}" for n in range(number + 1)]
    spool.close()


def test_killed_worker_loses_no_appended_entry(tmp_path: Path) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        process = start_worker(folder, "w", 1_000_000, pause=0.001)
        assert process.stdout is not None
        appended = [int(process.stdout.readline()) for _ in range(4 + turn)][-1]
        process.kill()
        appended = max([appended, *map(int, process.stdout.read().split())])
        process.wait()
        request_ids = ids(folder)
        assert len(request_ids) >= appended
        assert request_ids == [f"w-{n}" for n in range(len(request_ids))]


def test_segment_is_not_last_while_its_worker_runs(tmp_path: Path) -> None:
    process = start_worker(tmp_path, "w", 50, end="time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "50\n"
    (path,) = segment_paths(str(tmp_path))
    segment = Segment(path)
    assert (len(segment.read(1000).frames), segment.read(1000).last) == (50, False)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert segment.read(1000).last
    segment.close()


def test_incomplete_frame_at_the_end_is_skipped_and_measured(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(10):
        spool.append(make_entry(request_id=f"r{number}"))
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path)))
    whole = path.read_bytes()
    for cut in (1, 5, 300):
        path.write_bytes(whole[:-cut])
        segment = Segment(str(path))
        batch = segment.read(1000)
        assert len(batch.frames) == 9
        assert batch.incomplete_bytes == len(whole) - cut - batch.end > 0
        segment.close()
    path.write_bytes(whole[:-50] + b"\xff" * 50)
    segment = Segment(str(path))
    assert (len(segment.read(1000).frames), segment.read(1000).incomplete_bytes) == (9, len(whole) - batch.end)
    segment.close()


def test_new_segment_begins_by_size_and_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_BYTES", 4000)
    spool = Spool(str(tmp_path), 0)
    for number in range(100):
        spool.append(make_entry(request_id=f"r{number}"))
    assert len(segment_paths(str(tmp_path))) > 5
    assert ids(tmp_path) == [f"r{n}" for n in range(100)]
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_S", 0.0)
    spool.tick()
    segments = [Segment(path) for path in segment_paths(str(tmp_path))]
    assert all(segment.read(1000).last for segment in segments)
    for segment in segments:
        segment.close()
    spool.close()


FULL_DISK_SCRIPT = """
import resource, sys
sys.path.insert(0, {tests!r})
from support.ledger_entries import make_entry
from penstock.gateway.ledger import spool as module
module.RETRY_S = 0.0
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
spool = module.Spool({folder!r}, 0)
for n in range(1000):
    if n == 200:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
    if n == 800:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    spool.append(make_entry(request_id=f"r{{n}}"))
spool.tick()
spool.close()
print(spool.failures > 0, spool.dropped, spool.appended)
"""


@pytest.mark.parametrize("limit", [0, 90_001, 133_333, 150_000])
def test_temporarily_full_disk_loses_no_entry(tmp_path: Path, limit: int) -> None:
    """A limit on the file size simulates the full disk: a write is short, then writes fail."""
    script = FULL_DISK_SCRIPT.format(tests=str(TESTS), folder=str(tmp_path), limit=limit)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True 0 1000\n", "")
    assert ids(tmp_path) == [f"r{n}" for n in range(1000)]


def test_entries_of_a_short_write_are_counted_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(str(tmp_path), 0)
    spool.append(make_entry(request_id="r0"))
    with monkeypatch.context() as patched:
        write = os.write
        patched.setattr(
            "penstock.gateway.ledger.spool.os.write", lambda file, data: write(file, data[: len(data) // 2])
        )
        spool.append(*(make_entry(request_id=f"r{number}") for number in range(1, 4)))
    assert (spool.appended, ids(tmp_path)) == (2, ["r0", "r1"])
    spool.tick()
    assert (spool.appended, spool.dropped) == (4, 0)
    assert ids(tmp_path) == ["r0", "r1", "r2", "r3"]
    spool.close()


def test_entries_of_a_loop_iteration_are_written_together(tmp_path: Path) -> None:
    entries = [make_entry(request_id=f"r{number}") for number in range(3)]

    async def record() -> None:
        recorder = Recorder(str(tmp_path), 0)
        recorder.start(asyncio.get_running_loop())
        for entry in entries:
            recorder.live.begin(entry, 1)
            recorder.record(entry)
        (live,) = live_paths(str(tmp_path))
        assert (len(read_lost(live)), ids(tmp_path)) == (3, [])  # what a killed worker would leave
        await asyncio.sleep(0)
        assert (read_lost(live), ids(tmp_path)) == ([], ["r0", "r1", "r2"])
        recorder.record(make_entry(request_id="r3"))
        recorder.close()

    asyncio.run(record())
    assert ids(tmp_path) == ["r0", "r1", "r2", "r3"]


def test_entries_lost_on_a_full_disk_are_counted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.spool.MAX_BUFFERED_BYTES", 3000)
    spool = Spool(str(tmp_path), 0)
    spool.append(make_entry(request_id="written"))

    def fail(*_: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr("penstock.gateway.ledger.spool.os.write", fail)
    for _ in range(20):
        spool.append(make_entry())
    assert (spool.appended, spool.dropped > 10) == (1, True)  # the others wait in memory
    spool.tick()
    spool.append(make_entry())
    spool.tick()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"lost because the spool {tmp_path} could not be written" in line
    spool.close()
    assert (spool.appended, spool.dropped) == (1, 21)
    assert "usage entries were lost" in capsys.readouterr().err
    assert ids(tmp_path) == ["written"]


def test_invalid_values_from_upstreams_are_written(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    spool.append(make_entry(request_id="a", upstream_id="\ud800 lone"))
    spool.append(make_entry(request_id="b", input_tokens=2**70))
    spool.append(make_entry(request_id="c", finish=object()))
    spool.append(make_entry(request_id="d", phases_ms={"\udfff": 1.0}))
    spool.close()
    assert spool.dropped == 0
    assert ids(tmp_path) == ["a", "b", "c", "d"]


def test_pending_entries_are_counted(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    counter = PendingCounter()
    for number in range(1, 2001):
        spool.append(make_entry())
        if number % 500 == 0:
            assert counter.count(segment_paths(str(tmp_path)), {}).entries == number
    (path,) = segment_paths(str(tmp_path))
    size = os.stat(path).st_size
    assert counter.count([path], {}) == (2000, size)
    assert counter.count([path], {path: (1500, size - 10)}) == (500, 10)
    spool.close()


def test_unusable_folder_raises_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"spool folder .* cannot be used"):
        prepare_folder(str(tmp_path / "file"))
    prepare_folder(str(tmp_path / "new" / "spool"))
    assert os.listdir(tmp_path / "new" / "spool") == []


def test_files_that_are_not_segments_are_ignored(tmp_path: Path) -> None:
    for name in ("entries-old.spool", "entries-.spool", "entries-1-2-3.spool", "entries-0-x-1.spool", "notes.spool"):
        (tmp_path / name).write_text("somebody else's")
    spool = Spool(str(tmp_path), 7)
    spool.append(make_entry(request_id="ours"))
    assert ids(tmp_path) == ["ours"]
    spool.close()
