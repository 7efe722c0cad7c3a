"""Every entry reaches the ledger once: through crashes, through outages, and through what cannot be stored."""

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
from penstock.gateway.ledger.ledger import UsageQuery, open_ledger
from penstock.gateway.ledger.mover import REFUSED, Mover
from penstock.gateway.ledger.spool import ENTRY, Spool, segment_paths
from support.ledger_entries import eventually, made, worker
from support.postgres_cluster import PASSWORD, QUOTED, Cluster

STOP_S = 60.0
"""A bound for a hang only: `stop` returns as soon as all entries are moved, which a busy disk can delay for seconds."""


def requests(url: str) -> int:
    ledger = open_ledger(url)
    try:
        return ledger.usage(UsageQuery(by=()))[0].requests
    finally:
        ledger.close()


def test_entries_of_living_and_dead_workers_arrive(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    leftover = worker(folder, "left", 500)
    leftover.communicate()
    said: list[str] = []
    mover = Mover(str(folder), url, said.append)
    mover.start()
    alive = Spool(str(folder), 1)
    for number in range(300):
        alive.append(made(request_id=f"alive-{number}"))
    other = worker(folder, "other", 1000, pause=0.005)
    eventually(lambda: requests(url) >= 800)
    other.communicate()
    eventually(lambda: requests(url) == 1800)
    eventually(lambda: len(segment_paths(str(folder))) == 1)  # the one that is still being written
    for number in range(50):
        alive.append(made(request_id=f"late-{number}"))
    alive.close()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 1850
    assert segment_paths(str(folder)) == []
    state = mover.state()
    assert (state.moved, state.pending_entries, state.failures, said) == (1850, 0, 0, [])


MOVER = """
import sys, time
from penstock.gateway.ledger.mover import Mover
mover = Mover({folder!r}, {url!r})
mover.start()
print("up", flush=True)
time.sleep(60)
"""


def test_a_mover_killed_again_and_again_counts_nothing_twice(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    writers = [worker(folder, f"w{n}", 6000, pause=0.01) for n in range(2)]
    chance = random.Random(5)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", MOVER.format(folder=str(folder), url=url)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.4))
        process.kill()
        process.communicate()
    for writer in writers:
        writer.communicate()
    mover = Mover(str(folder), url)
    mover.start()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 12000
    assert segment_paths(str(folder)) == []


def test_nothing_is_lost_while_postgresql_is_away(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.mover.LAST_RETRY_S", 0.5)
    url = cluster.database()
    folder = tmp_path / "spool"
    said: list[str] = []
    spool = Spool(str(folder), 0)
    mover = Mover(str(folder), url, said.append)
    mover.start()
    spool.append(made())
    eventually(lambda: mover.state().moved == 1)
    cluster.stop()
    try:
        for _ in range(3000):
            spool.append(made())
        eventually(lambda: mover.state().failures >= 2)
        state = mover.state()
        assert (state.pending_entries, state.away) == (3000, True)
        assert state.pending_bytes > 1_000_000
    finally:
        cluster.start()
    eventually(lambda: mover.state().pending_entries == 0)
    spool.close()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 3001
    assert not mover.state().away
    assert len(said) == 2, said
    assert "Usage entries wait in" in said[0]
    assert "works again" in said[1]
    assert not any(PASSWORD in line or QUOTED in line for line in said)


def test_a_gateway_may_start_and_stop_without_its_database(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.database()
    said: list[str] = []
    cluster.stop()
    try:
        spool = Spool(str(tmp_path), 0)
        for _ in range(10):
            spool.append(made())
        spool.close()
        mover = Mover(str(tmp_path), url, said.append)
        mover.start()
        assert mover.stop(1.0) == 10
        assert "10 usage entries wait in" in said[-1]
    finally:
        cluster.start()
    mover = Mover(str(tmp_path), url, said.append)
    mover.start()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 10


def test_a_database_that_another_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.sqlite._LOCK_TIMEOUT_S", 0.05)
    url = f"sqlite:///{tmp_path}/usage.db"
    assert requests(url) == 0
    spool = Spool(str(tmp_path / "spool"), 0)
    mover = Mover(str(tmp_path / "spool"), url, lambda _: None)
    with sqlite3.connect(tmp_path / "usage.db", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        mover.start()
        for _ in range(100):
            spool.append(made())
        eventually(lambda: mover.state().failures >= 1)
        assert mover.state().pending_entries == 100
        holder.execute("ROLLBACK")
    eventually(lambda: mover.state().pending_entries == 0)
    spool.close()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 100


def test_a_ledger_that_is_moved_away_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.mover.FIRST_RETRY_S", 0.05)
    url = f"sqlite:///{tmp_path}/usage.db"
    said: list[str] = []
    spool = Spool(str(tmp_path / "spool"), 0)
    mover = Mover(str(tmp_path / "spool"), url, said.append)
    mover.start()
    spool.append(made())
    eventually(lambda: mover.state().moved == 1)
    os.rename(tmp_path / "usage.db", tmp_path / "june.db")
    spool.append(made())
    eventually(lambda: mover.state().moved == 2)
    spool.close()
    assert mover.stop(STOP_S) == 0
    assert (tmp_path / "usage.db").exists()
    assert "was moved or deleted" in said[0]


def test_a_long_outage_leaves_more_segments_than_a_process_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.spool.SEGMENT_BYTES", 1500)
    monkeypatch.setattr("penstock.gateway.ledger.mover.BATCH", 2)
    spool = Spool(str(tmp_path / "spool"), 0)
    for _ in range(1000):
        spool.append(made())
    spool.close()
    assert len(segment_paths(str(tmp_path / "spool"))) > 200
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 20, hard))
    try:
        mover.start()
        assert mover.stop(STOP_S) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (mover.state().moved, mover.state().failures) == (1000, 0)


def test_bad_entries_hold_up_nobody(url: str, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 0)
    for number in range(500):
        spool.append(made())
        if number == 100:
            spool.append(made(upstream_id="with a \0 in it"))
        if number == 200:
            spool.append(made(input_tokens=2**64 - 1))
        if number == 300:
            spool.append(made(input_tokens="many", at=float("nan")))
    spool.close()
    (path,) = segment_paths(str(tmp_path))
    with open(path, "ab") as file:
        file.write(frames.pack(ENTRY, b"\xc1 not msgpack"))
        file.write(frames.pack(ENTRY, b"\x80"))  # an entry without anything in it
        file.write(b"\x01\x00\x10")  # and a torn frame
    said: list[str] = []
    mover = Mover(str(tmp_path), url, said.append)
    mover.start()
    assert mover.stop(STOP_S) == 0
    state = mover.state()
    assert requests(url) + state.refused == 505
    assert state.refused <= 3
    assert (state.torn_bytes, state.failures) == (3, 0)
    with open(tmp_path / REFUSED, "rb") as kept:
        assert len(list(frames.read(kept))) == state.refused
    assert segment_paths(str(tmp_path)) == []
    assert any("3 bytes at the end of" in line for line in said)


def test_a_damaged_segment_is_kept_for_somebody_to_look_at(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 0)
    for _ in range(10):
        spool.append(made())
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path / "spool")))
    data = bytearray(path.read_bytes())
    data[len(data) // 10 * 4 + 100] ^= 0xFF
    path.write_bytes(data)
    said: list[str] = []
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url, said.append)
    mover.start()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 4
    assert [name for name in os.listdir(tmp_path / "spool") if name.endswith(".damaged")]
    assert "are no usage entry" in said[0]


def test_what_can_never_work_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither sqlite"):
        Mover(str(tmp_path), "mongodb://here")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="spool folder"):
        Mover(str(tmp_path / "file"), f"sqlite:///{tmp_path}/usage.db")


def test_frames_that_are_no_entries_are_set_aside(tmp_path: Path) -> None:
    """A segment of another version: its entries count, and what else is in it is kept for whoever knows it."""
    spool = Spool(str(tmp_path / "spool"), 0)
    spool.append(made(request_id="first"))
    spool.close()
    (path,) = map(Path, segment_paths(str(tmp_path / "spool")))
    like_an_entry = msgspec.msgpack.encode(made(request_id="second"))
    with path.open("ab") as file:
        file.write(frames.pack(ENTRY + 1, like_an_entry))
        file.write(frames.pack(ENTRY, msgspec.msgpack.encode(made(request_id="third"))))
    said: list[str] = []
    url = f"sqlite:///{tmp_path}/usage.db"
    mover = Mover(str(tmp_path / "spool"), url, said.append)
    mover.start()
    assert mover.stop(STOP_S) == 0
    assert requests(url) == 2
    assert mover.state().refused == 1
    assert "frames of kind 2" in said[0]
    with (tmp_path / "spool" / REFUSED).open("rb") as kept:
        assert list(frames.read(kept)) == [(ENTRY + 1, like_an_entry)]
