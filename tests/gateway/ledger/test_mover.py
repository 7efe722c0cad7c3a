"""Tests that every entry reaches the ledger exactly once despite crashes, outages and invalid entries."""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from penstock import frames
from penstock.errors import UserError
from penstock.gateway.ledger.ledger import open_ledger
from penstock.gateway.ledger.mover import REFUSED_FILE, Mover
from penstock.gateway.ledger.spool import ENTRY, Spool, segment_paths
from penstock.gateway.ledger.usage_table import UsageQuery
from support import TESTS
from support.ledger_entries import Messages, eventually, make_entry, start_worker
from support.postgres_cluster import PASSWORD, QUOTED_PASSWORD, Cluster

STOP_TIMEOUT_S = 60.0
"""`stop` returns as soon as all entries are moved, which can take seconds on a busy disk."""


def count_requests(url: str) -> int:
    ledger = open_ledger(url)
    try:
        return ledger.usage(UsageQuery(by=()))[0].requests
    finally:
        ledger.close()


def test_entries_of_running_and_ended_workers_reach_the_ledger(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    ended = start_worker(folder, "ended", 500)
    ended.communicate()
    messages = Messages()
    mover = Mover(str(folder), url, messages)
    mover.start()
    running = Spool(str(folder), 1)
    for number in range(300):
        running.append(make_entry(request_id=f"running-{number}"))
    second = start_worker(folder, "second", 1000, pause=0.005)
    eventually(lambda: count_requests(url) >= 800)
    second.communicate()
    eventually(lambda: count_requests(url) == 1800)
    eventually(lambda: len(segment_paths(str(folder))) == 1)  # the segment of the running worker
    for number in range(50):
        running.append(make_entry(request_id=f"late-{number}"))
    running.close()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 1850
    assert segment_paths(str(folder)) == []
    state = mover.state()
    assert (state.moved_entries_total, state.pending_entries, state.failures_total, messages) == (1850, 0, 0, [])


MOVER = """
import sys, time
from penstock.gateway.ledger.mover import Mover
mover = Mover({folder!r}, {url!r})
mover.start()
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_entries_are_counted_once_when_the_mover_is_killed_repeatedly(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    writers = [start_worker(folder, f"w{n}", 6000, pause=0.01) for n in range(2)]
    rng = random.Random(5)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", MOVER.format(folder=str(folder), url=url)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.4))
        process.kill()
        process.communicate()
    for writer in writers:
        writer.communicate()
    mover = Mover(str(folder), url)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 12000
    assert segment_paths(str(folder)) == []


def test_no_entry_is_lost_while_postgresql_is_unavailable(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.mover.LAST_RETRY_S", 0.5)
    url = cluster.database()
    folder = tmp_path / "spool"
    messages = Messages()
    spool = Spool(str(folder), 0)
    mover = Mover(str(folder), url, messages)
    mover.start()
    spool.append(make_entry())
    eventually(lambda: mover.state().moved_entries_total == 1)
    cluster.stop()
    try:
        for _ in range(3000):
            spool.append(make_entry())
        eventually(lambda: mover.state().failures_total >= 2)
        state = mover.state()
        assert (state.pending_entries, state.up) == (3000, 0)
        assert state.pending_bytes > 1_000_000
    finally:
        cluster.start()
    eventually(lambda: mover.state().pending_entries == 0)
    spool.close()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 3001
    assert mover.state().up
    assert len(messages) == 2, messages
    assert "Usage entries wait in" in messages[0]
    assert "works again" in messages[1]
    assert not any(PASSWORD in line or QUOTED_PASSWORD in line for line in messages)


def test_mover_starts_and_stops_without_its_database(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.database()
    messages = Messages()
    cluster.stop()
    try:
        spool = Spool(str(tmp_path), 0)
        for _ in range(10):
            spool.append(make_entry())
        spool.close()
        mover = Mover(str(tmp_path), url, messages)
        mover.start()
        assert mover.stop(1.0) == 10
        assert "10 usage entries wait in" in messages[-1]
    finally:
        cluster.start()
    mover = Mover(str(tmp_path), url, messages)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 10


def test_entries_are_moved_after_another_program_releases_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.sqlite._LOCK_TIMEOUT_S", 0.05)
    url = f"sqlite:///{tmp_path}/usage.db"
    assert count_requests(url) == 0
    spool = Spool(str(tmp_path / "spool"), 0)
    mover = Mover(str(tmp_path / "spool"), url, Messages())
    with sqlite3.connect(tmp_path / "usage.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        mover.start()
        for _ in range(100):
            spool.append(make_entry())
        eventually(lambda: mover.state().failures_total >= 1)
        assert mover.state().pending_entries == 100
        other.execute("ROLLBACK")
    eventually(lambda: mover.state().pending_entries == 0)
    spool.close()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 100


def test_entries_beyond_the_retention_time_are_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([make_entry(at=time.time() - 10 * 86400), make_entry(at=time.time() - 5 * 86400)])
    ledger.close()
    mover = Mover(str(tmp_path / "spool"), url, retention_s=7 * 86400)
    mover.start()
    eventually(lambda: count_requests(url) == 1)
    mover.stop(STOP_TIMEOUT_S)


def test_new_ledger_is_created_after_the_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.mover.FIRST_RETRY_S", 0.05)
    url = f"sqlite:///{tmp_path}/usage.db"
    messages = Messages()
    spool = Spool(str(tmp_path / "spool"), 0)
    mover = Mover(str(tmp_path / "spool"), url, messages)
    mover.start()
    spool.append(make_entry())
    eventually(lambda: mover.state().moved_entries_total == 1)
    os.rename(tmp_path / "usage.db", tmp_path / "june.db")
    spool.append(make_entry())
    eventually(lambda: mover.state().moved_entries_total == 2)
    spool.close()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert (tmp_path / "usage.db").exists()
    assert "was moved or deleted" in messages[0]


def test_more_segments_than_the_open_file_limit_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_BYTES", 1500)
    monkeypatch.setattr("penstock.gateway.ledger.mover.BATCH", 2)
    spool = Spool(str(tmp_path / "spool"), 0)
    for _ in range(1000):
        spool.append(make_entry())
    spool.close()
    assert len(segment_paths(str(tmp_path / "spool"))) > 200
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 20, hard))
    try:
        mover.start()
        assert mover.stop(STOP_TIMEOUT_S) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (mover.state().moved_entries_total, mover.state().failures_total) == (1000, 0)


def test_invalid_entries_do_not_block_the_others(url: str, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(500):
        spool.append(make_entry())
        if number == 100:
            spool.append(make_entry(upstream_id="with a \0 in it"))
        if number == 200:
            spool.append(make_entry(input_tokens=2**64 - 1))
        if number == 300:
            spool.append(make_entry(input_tokens="many", at=float("nan")))
    spool.close()
    (path,) = segment_paths(str(tmp_path))
    with open(path, "ab") as file:
        file.write(frames.pack(ENTRY, b"\xc1 not msgpack"))
        file.write(frames.pack(ENTRY, b"\x80"))  # an entry without fields
        file.write(b"\x01\x00\x10")  # an incomplete frame
    messages = Messages()
    mover = Mover(str(tmp_path), url, messages)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    state = mover.state()
    assert count_requests(url) + state.refused_entries_total == 505
    assert state.refused_entries_total <= 3
    assert (state.torn_bytes_total, state.failures_total) == (3, 0)
    with open(tmp_path / REFUSED_FILE, "rb") as refused:
        assert len(list(frames.Reader(refused))) == state.refused_entries_total
    assert segment_paths(str(tmp_path)) == []
    assert any("The last 3 bytes of" in line for line in messages)


def test_damaged_segment_is_kept_for_inspection(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 0)
    for _ in range(10):
        spool.append(make_entry())
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path / "spool")))
    data = bytearray(path.read_bytes())
    data[len(data) // 10 * 4 + 100] ^= 0xFF
    path.write_bytes(data)
    messages = Messages()
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url, messages)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 4
    assert [name for name in os.listdir(tmp_path / "spool") if name.endswith(".damaged")]
    assert "are not a usage entry" in messages[0]


def test_invalid_url_or_folder_raises_user_error_before_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither sqlite"):
        Mover(str(tmp_path), "mongodb://here")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="spool folder"):
        Mover(str(tmp_path / "file"), f"sqlite:///{tmp_path}/usage.db")


def test_frames_of_unknown_kind_are_kept_as_refused(tmp_path: Path) -> None:
    """Another version may have written the segment: its entries count, and its other frames are kept."""
    spool = Spool(str(tmp_path / "spool"), 0)
    spool.append(make_entry(request_id="first"))
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path / "spool")))
    encoded_entry = msgspec.msgpack.encode(make_entry(request_id="second"))
    with path.open("ab") as file:
        file.write(frames.pack(ENTRY + 1, encoded_entry))
        file.write(frames.pack(ENTRY, msgspec.msgpack.encode(make_entry(request_id="third"))))
    messages = Messages()
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url, messages)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    assert count_requests(url) == 2
    assert mover.state().refused_entries_total == 1
    assert "unknown frame kind 2" in messages[0]
    with (tmp_path / "spool" / REFUSED_FILE).open("rb") as refused:
        assert list(frames.Reader(refused)) == [(ENTRY + 1, encoded_entry)]


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from support import TESTS
from support.ledger_entries import make_entry
from penstock.gateway.observe.recorder import Recorder
recorder = Recorder({folder!r}, 3)
entries = [make_entry(request_id=f"r{{n}}", team_id="t", status=0) for n in range(600)]
for entry in entries:
    recorder.live.begin(entry, 7)
for entry in entries[:598]:
    entry.status = 200
    recorder.record(entry)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_requests_of_a_killed_worker_get_an_entry(url: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "spool")
    subprocess.run([sys.executable, "-c", KILLED.format(tests=str(TESTS), folder=folder)])
    messages = Messages()
    mover = Mover(folder, url, messages)
    mover.start()
    assert mover.stop(STOP_TIMEOUT_S) == 0
    ledger = open_ledger(url, read_only=True)
    (row,) = ledger.usage(UsageQuery(by=("team",)))
    ledger.close()
    assert (row.team, row.requests, row.errors) == ("t", 600, 2)
    assert (row.input_tokens, row.estimated_tokens) == (598 * 12 + 2 * 7, 2 * 7)
    assert messages == ["A worker was killed while it served 2 requests."]
    assert [name for name in os.listdir(folder) if name.startswith("live-")] == []
