"""The spool survives the death of the process that writes it, and a disk that takes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.segment import Backlog, Segment
from penstock.gateway.ledger.spool import Spool, open_folder, segment_paths
from support import TESTS
from support.ledger_entries import made, worker


def ids(folder: Path) -> list[str]:
    """Of everything that is in the spool, in order."""
    found = []
    for path in segment_paths(str(folder)):
        segment = Segment(path)
        found += [msgspec.msgpack.decode(data, type=Entry).request_id for _, data in segment.read(1_000_000).entries]
        segment.close()
    return found


def test_an_entry_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(3):
        spool.append(made(request_id=f"r{number}"))
        assert ids(tmp_path) == [f"r{n}" for n in range(number + 1)]
    spool.close()


def test_a_worker_killed_at_any_moment_loses_nothing_that_it_appended(tmp_path: Path) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        process = worker(folder, "w", 1_000_000, pause=0.001)
        assert process.stdout is not None
        appended = [int(process.stdout.readline()) for _ in range(4 + turn)][-1]
        process.kill()
        appended = max([appended, *map(int, process.stdout.read().split())])
        process.wait()
        found = ids(folder)
        assert len(found) >= appended
        assert found == [f"w-{n}" for n in range(len(found))]


def test_a_segment_is_its_workers_while_the_worker_lives(tmp_path: Path) -> None:
    process = worker(tmp_path, "w", 50, end="time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "50\n"
    (path,) = segment_paths(str(tmp_path))
    segment = Segment(path)
    assert (len(segment.read(1000).entries), segment.read(1000).last) == (50, False)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert segment.read(1000).last
    segment.close()


def test_a_torn_tail_is_left_out_and_measured(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(10):
        spool.append(made(request_id=f"r{number}"))
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path)))
    whole = path.read_bytes()
    for cut in (1, 5, 300):
        path.write_bytes(whole[:-cut])
        segment = Segment(str(path))
        piece = segment.read(1000)
        assert len(piece.entries) == 9
        assert piece.torn == len(whole) - cut - piece.end > 0
        segment.close()
    path.write_bytes(whole[:-50] + b"\xff" * 50)
    segment = Segment(str(path))
    assert (len(segment.read(1000).entries), segment.read(1000).torn) == (9, len(whole) - piece.end)
    segment.close()


def test_segments_change_by_size_and_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_BYTES", 4000)
    spool = Spool(str(tmp_path), 0)
    for number in range(100):
        spool.append(made(request_id=f"r{number}"))
    assert len(segment_paths(str(tmp_path))) > 5
    assert ids(tmp_path) == [f"r{n}" for n in range(100)]
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_S", 0.0)
    spool.tick()
    segments = [Segment(path) for path in segment_paths(str(tmp_path))]
    assert all(segment.read(1000).last for segment in segments)
    for segment in segments:
        segment.close()
    spool.close()


FULL = """
import resource, sys
sys.path.insert(0, {here!r})
from support.ledger_entries import made
from penstock.gateway.ledger import spool as module
module.RETRY_S = 0.0
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
spool = module.Spool({folder!r}, 0)
for n in range(1000):
    if n == 200:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, hard))
    if n == 800:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    spool.append(made(request_id=f"r{{n}}"))
spool.tick()
spool.close()
print(spool.failures > 0, spool.dropped, spool.appended)
"""


@pytest.mark.parametrize("limit", [0, 90_001, 133_333, 150_000])
def test_a_disk_that_is_full_for_a_while_costs_no_entry(tmp_path: Path, limit: int) -> None:
    """The kernel's limit on the size of a file stands in for the full disk: writes fall short, then fail."""
    script = FULL.format(here=str(TESTS), folder=str(tmp_path), limit=limit)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True 0 1000\n", "")
    assert ids(tmp_path) == [f"r{n}" for n in range(1000)]


def test_whatever_an_upstream_made_up_is_written(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    spool.append(made(request_id="a", upstream_id="\ud800 lone"))
    spool.append(made(request_id="b", input_tokens=2**70))
    spool.append(made(request_id="c", finish=object()))
    spool.append(made(request_id="d", phases_ms={"\udfff": 1.0}))
    spool.close()
    assert spool.dropped == 0
    assert ids(tmp_path) == ["a", "b", "c", "d"]


def test_the_backlog_is_counted(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    backlog = Backlog()
    for number in range(1, 2001):
        spool.append(made())
        if number % 500 == 0:
            assert backlog.waiting(segment_paths(str(tmp_path)), {}).entries == number
    (path,) = segment_paths(str(tmp_path))
    size = os.stat(path).st_size
    assert backlog.waiting([path], {}) == (2000, size)
    assert backlog.waiting([path], {path: (1500, size - 10)}) == (500, 10)
    spool.close()


def test_a_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"spool folder .* cannot be used"):
        open_folder(str(tmp_path / "file"))
    open_folder(str(tmp_path / "new" / "spool"))
    assert os.listdir(tmp_path / "new" / "spool") == []


def test_only_segments_are_read(tmp_path: Path) -> None:
    for name in ("entries-old.spool", "entries-.spool", "entries-1-2-3.spool", "entries-0-x-1.spool", "notes.spool"):
        (tmp_path / name).write_text("somebody else's")
    spool = Spool(str(tmp_path), 7)
    spool.append(made(request_id="ours"))
    assert ids(tmp_path) == ["ours"]
    spool.close()
