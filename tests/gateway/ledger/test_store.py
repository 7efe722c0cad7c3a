"""Tests of the ledger in both databases: each request counts once, and the sums used for billing are right."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pytest

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.ledger.ledger import EntryRefusedError, LedgerUnavailableError, check_url, open_ledger, purge_all
from penstock.gateway.ledger.usage_table import NAMES, UsageQuery, UsageRow
from support.ledger_entries import JUNE_1, make_entry
from support.postgres_cluster import PASSWORD, QUOTED_PASSWORD, Cluster

DAY = 86400.0


def totals(url: str) -> UsageRow:
    ledger = open_ledger(url, read_only=True)
    try:
        return ledger.usage(UsageQuery(by=()))[0]
    finally:
        ledger.close()


def columns(url: str, fields: str) -> list[tuple[object, ...]]:
    sql = f"SELECT {fields} FROM penstock_usage ORDER BY at"
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchall()


def test_entry_counts_once_however_often_it_is_inserted(url: str) -> None:
    ledger = open_ledger(url)
    entries = [make_entry(request_id=f"r{n}") for n in range(10)]
    assert ledger.insert(entries) == 10
    assert ledger.insert(entries) == 0
    assert ledger.insert([*entries, make_entry(request_id="r10"), make_entry(request_id="r10")]) == 1
    ledger.close()
    assert (totals(url).requests, totals(url).input_tokens) == (11, 11 * 12)


def test_purge_deletes_what_is_older(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.ledger.ledger.PURGE_BATCH", 3)
    ledger = open_ledger(url)
    ledger.insert([make_entry(at=JUNE_1 + day * DAY) for day in range(10)])
    assert purge_all(ledger, JUNE_1 + 7 * DAY) == 7
    assert purge_all(ledger, JUNE_1 + 7 * DAY) == 0
    ledger.close()
    assert totals(url).requests == 3


def test_sqlite_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/usage.db")
    ledger.insert([make_entry()])
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("usage.db", "usage.db-wal", "usage.db-shm"), "0o600"
    )
    ledger.close()


def test_usage_is_grouped_by_key_model_and_day(url: str) -> None:
    ledger = open_ledger(url)
    ledger.insert(
        [
            make_entry(),
            make_entry(input_tokens=100, output_tokens=50, reasoning_tokens=20, cached_tokens=64),
            make_entry(status=422, error="content_filter", blocked=True),
            make_entry(status=502, error="upstream_error", input_tokens=0, output_tokens=0, usage_source="none"),
            make_entry(status=499, error="client_disconnected", usage_source="estimated"),
            make_entry(at=JUNE_1 - 0.001),  # still May
            make_entry(model="fast"),
            make_entry(api_key_name="", api_key_id="", model="", status=401, error="invalid_api_key", input_tokens=0),
        ]
    )
    rows = ledger.usage(UsageQuery())
    assert [(row.day, row.key, row.model, row.requests) for row in rows] == [
        ("2026-05-31", "team-a", "gpt-4o-prod", 1),
        ("2026-06-01", "", "", 1),
        ("2026-06-01", "team-a", "fast", 1),
        ("2026-06-01", "team-a", "gpt-4o-prod", 5),
    ]
    busy = rows[3]
    assert (busy.errors, busy.blocked) == (2, 1)
    assert (busy.input_tokens, busy.output_tokens) == (12 + 100 + 12 + 0 + 12, 5 + 50 + 5 + 0 + 5)
    assert (busy.reasoning_tokens, busy.cached_tokens, busy.estimated_tokens) == (20, 64, 17)
    assert busy.estimated_share == 17 / (136 + 65)
    assert [(row.key, row.model, row.requests) for row in ledger.usage(UsageQuery(by=("key",)))] == [
        ("", None, 1),
        ("team-a", None, 7),
    ]
    ledger.close()


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        (UsageQuery(by=()), 4),
        (UsageQuery(by=(), since=JUNE_1), 3),
        (UsageQuery(by=(), until=JUNE_1), 1),
        (UsageQuery(by=(), since=JUNE_1, until=JUNE_1 + DAY), 2),
        (UsageQuery(by=(), keys=("team-b",)), 1),
        (UsageQuery(by=(), keys=("id-of-b", "team-a")), 4),
        (UsageQuery(by=(), models=("fast",)), 1),
        (UsageQuery(by=(), keys=("team-b",), models=("fast",)), 0),
        (UsageQuery(by=(), keys=("' OR 1=1 --",)), 0),
    ],
)
def test_filters_select_requests(url: str, query: UsageQuery, requests: int) -> None:
    ledger = open_ledger(url)
    ledger.insert(
        [
            make_entry(at=JUNE_1 - DAY),
            make_entry(at=JUNE_1, api_key_name="team-b", api_key_id="id-of-b"),
            make_entry(at=JUNE_1 + DAY / 2, model="fast"),
            make_entry(at=JUNE_1 + DAY),
        ]
    )
    assert [row.requests for row in ledger.usage(query)] == [requests]
    ledger.close()


def test_every_field_of_an_entry_is_stored(url: str) -> None:
    assert set(NAMES) == {*Entry.__struct_fields__, "day"}
    ledger = open_ledger(url)
    attempts = [
        Attempt(model="a", upstream="x", provider_key="up", kind="initial", status=503, error="upstream_status"),
        Attempt(model="b", upstream="y", provider_key="up", kind="fallback", status=200),
    ]
    ledger.insert([make_entry(attempts=attempts, stream=True, ttft_ms=3.25, finish="completed", client="10.0.0.1")])
    ledger.close()
    ((stream, ttft, finish, client, stored),) = columns(url, "stream, ttft_ms, finish, client, attempts")
    assert (bool(stream), ttft, finish, client) == (True, 3.25, "completed", "10.0.0.1")
    decoded = msgspec.json.decode(stored) if isinstance(stored, str) else stored
    assert [(one["model"], one["error"]) for one in decoded] == [("a", "upstream_status"), ("b", None)]


def test_sql_ascii_database_returns_text(cluster: Cluster) -> None:
    """Without a client encoding, psycopg returns bytes from such a database."""
    url = cluster.database("SQL_ASCII")
    ledger = open_ledger(url)
    ledger.insert([make_entry(model="gpt-für-alle", api_key_name="münchen")])
    [row] = ledger.usage(UsageQuery(by=("key", "model", "day")))
    ledger.close()
    assert (row.key, row.model) == ("münchen", "gpt-für-alle")
    assert totals(url).requests == 1


def test_opening_an_older_ledger_adds_missing_columns(url: str) -> None:
    ledger = open_ledger(url)
    ledger.insert([make_entry(request_id="old")])
    ledger.close()
    for column in ("cached_tokens", "guardrails", "ttft_ms"):
        drop_column = f"ALTER TABLE penstock_usage DROP COLUMN {column}"
        if url.startswith("sqlite"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
                file.execute(drop_column)
        else:
            with psycopg.connect(url) as connection:
                connection.execute(drop_column)
    ledger = open_ledger(url)
    assert ledger.insert([make_entry(request_id="old"), make_entry(request_id="new", cached_tokens=7)]) == 1
    ledger.close()
    assert totals(url).cached_tokens == 7


def test_several_gateways_can_open_a_new_ledger_at_once(url: str) -> None:
    def open_and_insert(gateway: int) -> int:
        ledger = open_ledger(url)
        try:
            return ledger.insert([make_entry(request_id=f"{gateway}-{n}") for n in range(50)])
        finally:
            ledger.close()

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(open_and_insert, range(6))) == [50] * 6
    assert totals(url).requests == 300


def test_opening_waits_for_a_transaction_of_a_connection_without_wal(tmp_path: Path) -> None:
    path = f"{tmp_path}/usage.db"
    with sqlite3.connect(path, isolation_level=None) as writer, ThreadPoolExecutor(1) as thread:
        writer.execute("BEGIN IMMEDIATE")
        opening = thread.submit(lambda: open_ledger(f"sqlite:///{path}").close())
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.2)
        writer.execute("ROLLBACK")
        opening.result()


def test_one_invalid_entry_refuses_the_whole_batch(url: str) -> None:
    ledger = open_ledger(url)
    with pytest.raises(EntryRefusedError):
        ledger.insert([make_entry(), make_entry(input_tokens=2**63)])
    assert ledger.usage(UsageQuery(by=()))[0].requests == 0
    assert ledger.insert([make_entry()]) == 1
    ledger.close()


def test_reader_does_not_wait_for_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([make_entry()])
    with sqlite3.connect(f"{tmp_path}/usage.db", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert totals(url).requests == 1
        writer.execute("ROLLBACK")
    ledger.close()


def test_reading_does_not_create_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no ledger at"):
        open_ledger(f"sqlite:///{tmp_path}/usage.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_database_without_a_ledger_raises_user_error(tmp_path: Path, cluster: Cluster) -> None:
    with sqlite3.connect(tmp_path / "other.db") as file:
        file.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(UserError, match="without a ledger"):
        open_ledger(f"sqlite:///{tmp_path}/other.db", read_only=True)
    with pytest.raises(UserError, match="There is no ledger in"):
        open_ledger(cluster.database(), read_only=True)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root:hush@db/x", "neither sqlite"),
        ("sqlite://usage.db", "neither sqlite"),
        ("sqlite:///", "names no file"),
        ("sqlite:///no/such/folder/usage.db", "no/such/folder, which does not exist"),
        ("postgresql://u:hush/hush@db/x", "cannot be read"),
        ("postgresql://u:hu?hush@127.0.0.1:1/x", "cannot be"),
        ("postgresql://u:hush@db:port/x", "cannot be"),
    ],
)
def test_invalid_url_is_reported_without_the_password(url: str, message: str) -> None:
    with pytest.raises((UserError, LedgerUnavailableError), match=message) as caught:
        (check_url(url), open_ledger(url))
    assert "hush" not in str(caught.value)


def test_no_message_contains_the_password(cluster: Cluster) -> None:
    url = cluster.database()
    messages = []
    for invalid_url in (
        url.replace("penstock:", "nobody:"),
        url + "x",
        url.replace(QUOTED_PASSWORD, QUOTED_PASSWORD + "x"),
    ):
        with pytest.raises(LedgerUnavailableError) as caught:
            open_ledger(invalid_url)
        messages.append(str(caught.value))
    assert all(PASSWORD not in text and QUOTED_PASSWORD not in text and "127.0.0.1" in text for text in messages), (
        messages
    )
