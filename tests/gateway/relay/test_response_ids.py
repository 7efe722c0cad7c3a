"""The map from response ids to their callers, as several workers use it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.gateway.refusal import Refusal
from penstock.gateway.relay import response_ids
from penstock.gateway.relay.id_databases import SqliteIds
from penstock.gateway.relay.response_ids import ResponseIds, ResponseOwner
from support.postgres_cluster import Cluster

DAY_S = 86400.0


def open_map(folder: Path, ttl_s: float = DAY_S) -> ResponseIds:
    return ResponseIds(str(folder), ttl_s)


def owner(ids: ResponseIds, response_id: str) -> ResponseOwner | None:
    return asyncio.run(ids.owner(response_id))


def stored_ids(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "response-ids.db")) as database:
        return [row[0] for row in database.execute("SELECT id FROM response_ids ORDER BY id")]


def test_id_is_known_to_all_workers_at_once(tmp_path: Path) -> None:
    first, second = open_map(tmp_path), open_map(tmp_path)
    first.record("resp_1", "alice", "account", time.time())
    assert owner(second, "resp_1") == ResponseOwner("alice", "account")
    second.record("resp_2", "bob", "account", time.time())
    assert owner(first, "resp_2") == ResponseOwner("bob", "account")
    assert owner(first, "resp_3") is None


def test_ids_survive_a_killed_worker(tmp_path: Path) -> None:
    worker = open_map(tmp_path)
    worker.record("resp_1", "alice", "account", time.time())
    owner(worker, "resp_1")  # its thread is idle now: a killed worker has none that could move the log
    del worker  # never closed
    log = next(tmp_path.glob("*.log"))
    log.write_bytes(log.read_bytes().rstrip(b"\0") + b'["resp_2","al')  # killed within a write
    again = open_map(tmp_path)
    assert owner(again, "resp_1") == ResponseOwner("alice", "account")
    again.close()
    assert stored_ids(tmp_path) == ["resp_1"]
    assert not list(tmp_path.glob("*.log"))


def test_ids_around_a_page_that_a_power_cut_lost_are_kept(tmp_path: Path) -> None:
    lines = [json.dumps([f"resp_{number}", "alice", "account", time.time()]).encode() + b"\n" for number in range(2)]
    log = tmp_path / f"response-ids-{time.time_ns():020}-1.log"
    log.write_bytes(lines[0] + b'["resp_' + bytes(4096) + b'count",1]\n' + lines[1] + bytes(100))
    open_map(tmp_path).close()
    assert stored_ids(tmp_path) == ["resp_0", "resp_1"]


def test_ids_of_a_worker_that_is_being_replaced_are_kept(tmp_path: Path) -> None:
    old = open_map(tmp_path)
    old.record("resp_1", "alice", "account", time.time())
    new = open_map(tmp_path)
    assert owner(new, "resp_1") == ResponseOwner("alice", "account")
    old.record("resp_2", "alice", "account", time.time())  # a request that began before
    assert owner(new, "resp_2") == ResponseOwner("alice", "account")
    old.close()
    assert stored_ids(tmp_path) == ["resp_1", "resp_2"]
    assert owner(new, "resp_2") == ResponseOwner("alice", "account")


def test_newest_record_counts_across_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_ids, "LOG_BYTES", 100)
    ids = open_map(tmp_path)
    for number in range(40):
        ids.record("resp_1", f"key-{number}", "account", time.time())
        ids.record(f"other-{number}", "key", "account", time.time())
    assert owner(ids, "resp_1") == ResponseOwner("key-39", "account")
    ids.close()
    assert owner(open_map(tmp_path), "resp_1") == ResponseOwner("key-39", "account")
    assert len(stored_ids(tmp_path)) == 41


def test_ids_expire(tmp_path: Path) -> None:
    ids = open_map(tmp_path, ttl_s=0)
    ids.record("resp_1", "alice", "account", time.time())
    ids.close()
    again = open_map(tmp_path, ttl_s=-2)
    assert owner(again, "resp_1") is None
    again.close()
    assert stored_ids(tmp_path) == []


def test_files_are_private(tmp_path: Path) -> None:
    ids = open_map(tmp_path / "folder")
    ids.record("resp_1", "alice", "account", time.time())
    owner(ids, "resp_1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "folder").iterdir()}
    assert modes == {0o600}


def test_gateways_on_two_machines_share_ids_in_postgresql(tmp_path: Path, cluster: Cluster) -> None:
    url = cluster.database()
    first, second = (ResponseIds(str(tmp_path / name), DAY_S, url) for name in ("first", "second"))
    for number in range(3):
        first.record("resp_1", f"key-{number}", "account", time.time())
    assert owner(first, "resp_1") == ResponseOwner("key-2", "account")
    first.tick(time.time() + 5)  # the log is old now
    owner(first, "resp_1")  # its thread has moved the log
    assert owner(second, "resp_1") == ResponseOwner("key-2", "account")
    second.record("resp_1", "key-3", "account", time.time())
    second.close()
    first.record("resp_2", "bob", "account", time.time() - 2 * DAY_S)
    first.close()
    again = ResponseIds(str(tmp_path / "third"), DAY_S, url)
    assert owner(again, "resp_1") == ResponseOwner("key-3", "account")
    assert owner(again, "resp_2") is None
    again.close()


def test_ids_wait_in_their_log_while_postgresql_is_unavailable(tmp_path: Path) -> None:
    ids = ResponseIds(str(tmp_path), DAY_S, "postgresql://penstock:s3cret@127.0.0.1:1/ids")
    ids.record("resp_1", "alice", "account", time.time())
    with pytest.raises(Refusal, match="cannot look up"):
        owner(ids, "resp_1")
    ids.close()
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_postgresql_keeps_an_id_with_a_nul_character(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_ids, "SHARED_WAIT_S", 0.0)
    ids = ResponseIds(str(tmp_path), DAY_S, cluster.database())
    ids.record("resp_\0", "alice", "account", time.time())
    ids.record("resp_1", "alice", "account", time.time())
    ids.tick(time.time() + 5)  # the log is old now
    assert owner(ids, "resp_1") == owner(ids, "resp_\0") == ResponseOwner("alice", "account")
    assert owner(ids, "other_\0") is None
    ids.close()
    assert not list(tmp_path.glob("*.log"))


class SlowDatabase:
    """A database that cannot be reached, and takes until `release` to say so."""

    def __init__(self) -> None:
        self.adds = 0
        self.begun, self.release = threading.Event(), threading.Event()

    def add(self, logs: Callable[[], Iterable[bytes]], expire_before: float) -> None:
        self.adds += 1
        self.begun.set()
        self.release.wait(60)
        raise OSError("unreachable")

    def find(self, response_id: str) -> None:
        raise OSError("unreachable")


def test_moves_and_logs_do_not_pile_up_while_the_database_is_unreachable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = open_map(tmp_path)
    assert owner(ids, "resp_1") is None  # the first move is done
    database = ids._database = SlowDatabase()
    for number in range(20):
        ids.record(f"resp_{number}", "alice", "account", time.time())
        ids.tick(time.time() + DAY_S)
        database.begun.wait(60)
    database.release.set()
    with pytest.raises(Refusal, match="cannot look up"):
        owner(ids, "resp_1")
    assert database.adds == 2  # one that runs, and one for all logs since
    logs = len(list(tmp_path.glob("*.log")))
    for number in range(5):
        ids.record(f"new_{number}", "alice", "account", time.time())
        ids.tick(time.time() + DAY_S)
    assert len(list(tmp_path.glob("*.log"))) == logs + 1
    assert capsys.readouterr().err.count("response ids cannot be moved") == 1
    ids._database = SqliteIds(str(tmp_path / "response-ids.db"))
    ids.tick(time.time())  # the database works again
    assert owner(ids, "new_4") == ResponseOwner("alice", "account")
    ids.tick(time.time() + DAY_S)
    ids.close()
    assert len(stored_ids(tmp_path)) == 25
