"""The map from response ids to their callers, as several workers use it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.gateway.refusal import Refusal
from penstock.gateway.storage import response_ids
from penstock.gateway.storage.id_databases import SqliteIds
from penstock.gateway.storage.response_ids import ResponseIds, ResponseOwner
from support.postgres_cluster import Cluster

DAY_S = 86400.0


def open_map(folder: Path, ttl_s: float = DAY_S) -> ResponseIds:
    return ResponseIds(str(folder), ttl_s)


def made_by(key_id: str) -> ResponseOwner:
    return ResponseOwner(key_id, "account", "gpt")


def owner(ids: ResponseIds, response_id: str) -> ResponseOwner | None:
    return asyncio.run(ids.owner(response_id))


def finish_moves(ids: ResponseIds) -> None:
    """Wait until the logs that can be moved are in the database."""
    ids._thread.submit(lambda: None).result(60)


def stored_ids(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "response-ids.db")) as database:
        return [row[0] for row in database.execute("SELECT id FROM response_ids ORDER BY id")]


def test_id_is_known_to_all_workers_at_once(tmp_path: Path) -> None:
    first, second = open_map(tmp_path), open_map(tmp_path)
    first.record("resp_1", made_by("alice"), time.time())
    assert owner(second, "resp_1") == made_by("alice")
    second.record("resp_2", made_by("bob"), time.time())
    assert owner(first, "resp_2") == made_by("bob")
    assert owner(first, "resp_3") is None


def test_ids_survive_a_killed_worker(tmp_path: Path) -> None:
    worker = open_map(tmp_path)
    worker.record("resp_1", made_by("alice"), time.time())
    finish_moves(worker)  # a killed worker has no thread that could move the log
    del worker  # never closed
    log = next(tmp_path.glob("*.log"))
    log.write_bytes(log.read_bytes().rstrip(b"\0") + b'["resp_2","al')  # killed within a write
    again = open_map(tmp_path)
    assert owner(again, "resp_1") == made_by("alice")
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
    old.record("resp_1", made_by("alice"), time.time())
    new = open_map(tmp_path)
    assert owner(new, "resp_1") == made_by("alice")
    old.record("resp_2", made_by("alice"), time.time())  # a request that began before
    assert owner(new, "resp_2") == made_by("alice")
    old.close()
    assert stored_ids(tmp_path) == ["resp_1", "resp_2"]
    assert owner(new, "resp_2") == made_by("alice")


def test_newest_record_counts_across_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_ids, "LOG_BYTES", 100)
    ids = open_map(tmp_path)
    for number in range(40):
        ids.record("resp_1", made_by(f"key-{number}"), time.time())
        ids.record(f"other-{number}", made_by("key"), time.time())
    assert owner(ids, "resp_1") == made_by("key-39")
    ids.close()
    assert owner(open_map(tmp_path), "resp_1") == made_by("key-39")
    assert len(stored_ids(tmp_path)) == 41


def test_ids_expire(tmp_path: Path) -> None:
    ids = open_map(tmp_path, ttl_s=0)
    ids.record("resp_1", made_by("alice"), time.time())
    ids.close()
    again = open_map(tmp_path, ttl_s=-2)
    assert owner(again, "resp_1") is None
    again.close()
    assert stored_ids(tmp_path) == []


def test_files_are_private(tmp_path: Path) -> None:
    ids = open_map(tmp_path / "folder")
    ids.record("resp_1", made_by("alice"), time.time())
    owner(ids, "resp_1")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "folder").iterdir()}
    assert modes == {0o600}


def test_gateways_on_two_machines_share_ids_in_postgresql(tmp_path: Path, cluster: Cluster) -> None:
    url = cluster.database()
    first, second = (ResponseIds(str(tmp_path / name), DAY_S, url) for name in ("first", "second"))
    for number in range(3):
        first.record("resp_1", made_by(f"key-{number}"), time.time())
    assert owner(first, "resp_1") == made_by("key-2")
    first.tick(time.time() + 5)  # the log is old now
    finish_moves(first)
    assert owner(second, "resp_1") == made_by("key-2")
    second.record("resp_1", made_by("key-3"), time.time())
    second.close()
    first.record("resp_2", made_by("bob"), time.time() - 2 * DAY_S)
    first.close()
    again = ResponseIds(str(tmp_path / "third"), DAY_S, url)
    assert owner(again, "resp_1") == made_by("key-3")
    assert owner(again, "resp_2") is None
    again.close()


def test_ids_wait_in_their_log_while_postgresql_is_unavailable(tmp_path: Path) -> None:
    ids = ResponseIds(str(tmp_path), DAY_S, "postgresql://penstock:s3cret@127.0.0.1:1/ids")
    ids.record("resp_1", made_by("alice"), time.time())
    assert owner(ids, "resp_1") == made_by("alice")
    with pytest.raises(Refusal, match="cannot look up"):
        owner(ids, "resp_2")
    ids.close()
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_postgresql_keeps_an_id_with_a_nul_character(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_ids, "SHARED_WAIT_S", 0.0)
    ids = ResponseIds(str(tmp_path), DAY_S, cluster.database())
    ids.record("resp_\0", made_by("alice"), time.time())
    ids.record("resp_1", made_by("alice"), time.time())
    ids.tick(time.time() + 5)  # the log is old now
    assert owner(ids, "resp_1") == owner(ids, "resp_\0") == made_by("alice")
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


class HangingDatabase:
    """A database that answers no lookup until `release`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def add(self, logs: Callable[[], Iterable[bytes]], expire_before: float) -> None:
        raise OSError("unreachable")

    def find(self, response_id: str) -> tuple[str, str, float, str]:
        self.asked.append(response_id)
        self.release.wait(60)
        return "alice", "account", time.time(), "gpt"


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[ResponseIds, HangingDatabase]]:
    ids = open_map(tmp_path)
    database = ids._lookup_database = HangingDatabase()
    yield ids, database
    database.release.set()
    ids.close()


def test_local_id_is_found_while_the_database_hangs(hanging: tuple[ResponseIds, HangingDatabase]) -> None:
    ids, database = hanging
    ids.record("local", made_by("alice"), time.time())

    async def look_up() -> None:
        remote = asyncio.create_task(ids.owner("remote"))
        while not database.asked:
            await asyncio.sleep(0.001)
        for _ in range(20):
            assert await ids.owner("local") == made_by("alice")
        assert not remote.done()
        with pytest.raises(Refusal, match="cannot look up"):  # after its deadline
            await remote

    asyncio.run(look_up())
    assert database.asked == ["remote"]


def test_requests_for_one_id_share_a_query(hanging: tuple[ResponseIds, HangingDatabase]) -> None:
    ids, database = hanging

    async def look_up() -> list[ResponseOwner | None]:
        lookups = [asyncio.create_task(ids.owner("remote")) for _ in range(10)]
        while not database.asked:
            await asyncio.sleep(0.001)
        lookups[0].cancel()  # the others still wait
        database.release.set()
        return await asyncio.gather(*lookups[1:])

    assert asyncio.run(look_up()) == [made_by("alice")] * 9
    assert database.asked == ["remote"]


def test_query_for_which_nobody_waits_is_not_sent(hanging: tuple[ResponseIds, HangingDatabase]) -> None:
    ids, database = hanging

    async def look_up() -> None:
        first = asyncio.create_task(ids.owner("first"))
        while not database.asked:
            await asyncio.sleep(0.001)
        left = [asyncio.create_task(ids.owner("second")) for _ in range(3)]
        await asyncio.sleep(0)
        for lookup in left:
            lookup.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        database.release.set()
        assert await first == made_by("alice")
        assert await ids.owner("third") == made_by("alice")
        assert not ids._lookups

    asyncio.run(look_up())
    assert database.asked == ["first", "third"]


def test_lookups_beyond_the_deadline_are_refused_together(hanging: tuple[ResponseIds, HangingDatabase]) -> None:
    ids, database = hanging

    async def look_up() -> list[object]:
        return await asyncio.gather(*(ids.owner(f"id-{number}") for number in range(20)), return_exceptions=True)

    assert all(isinstance(result, Refusal) and result.status == 503 for result in asyncio.run(look_up()))
    assert len(database.asked) == 1


def test_files_of_the_previous_version_are_read_and_extended(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "response-ids.db")) as database:
        database.executescript(
            "CREATE TABLE response_ids (number INTEGER PRIMARY KEY, id TEXT, key_id TEXT, account TEXT, at REAL)"
        )
        insert = "INSERT INTO response_ids (id, key_id, account, at) VALUES (?, ?, ?, ?)"
        database.execute(insert, ("resp_0", "alice", "account", time.time()))
        database.commit()
    line = json.dumps(["resp_1", "alice", "account", time.time()]).encode() + b"\n"
    (tmp_path / f"response-ids-{time.time_ns():020}-1.log").write_bytes(line)
    ids = open_map(tmp_path)
    for response_id in ("resp_0", "resp_1"):
        assert owner(ids, response_id) == ResponseOwner("alice", "account", "")
    ids.record("resp_2", made_by("bob"), time.time())
    ids.close()
    assert owner(open_map(tmp_path), "resp_2") == made_by("bob")


def test_postgresql_table_of_the_previous_version_is_extended(tmp_path: Path, cluster: Cluster) -> None:
    url = cluster.database()
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE response_ids (id text PRIMARY KEY, key_id text, account text, at double precision)"
        )
        connection.execute("INSERT INTO response_ids VALUES ('resp_0', 'alice', 'account', %s)", (time.time(),))
    ids = ResponseIds(str(tmp_path), DAY_S, url)
    assert owner(ids, "resp_0") == ResponseOwner("alice", "account", "")
    ids.record("resp_1", made_by("bob"), time.time())
    ids.close()
    again = ResponseIds(str(tmp_path), DAY_S, url)
    assert owner(again, "resp_1") == made_by("bob")
    again.close()


def test_moves_and_logs_do_not_pile_up_while_the_database_is_unreachable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = open_map(tmp_path)
    finish_moves(ids)
    database = ids._database = ids._lookup_database = SlowDatabase()
    for number in range(20):
        ids.record(f"resp_{number}", made_by("alice"), time.time())
        ids.tick(time.time() + DAY_S)
        database.begun.wait(60)
    database.release.set()
    finish_moves(ids)
    with pytest.raises(Refusal, match="cannot look up"):
        owner(ids, "unknown")
    assert database.adds == 2  # one that runs, and one for all logs since
    logs = len(list(tmp_path.glob("*.log")))
    for number in range(5):
        ids.record(f"new_{number}", made_by("alice"), time.time())
        ids.tick(time.time() + DAY_S)
    assert len(list(tmp_path.glob("*.log"))) == logs + 1
    assert capsys.readouterr().err.count("response ids cannot be moved") == 1
    ids._database = SqliteIds(str(tmp_path / "response-ids.db"))
    ids.tick(time.time())  # the database works again
    assert owner(ids, "new_4") == made_by("alice")
    finish_moves(ids)
    ids.tick(time.time() + DAY_S)
    ids.close()
    assert len(stored_ids(tmp_path)) == 25
