"""Both databases: every request once, and the sums that people are billed by."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pytest

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.ledger.ledger import (
    EntryRefusedError,
    LedgerAwayError,
    UsageQuery,
    UsageRow,
    check_url,
    open_ledger,
)
from penstock.gateway.ledger.usage_table import NAMES
from support.ledger_entries import JUNE_1, made
from support.postgres_cluster import PASSWORD, QUOTED, Cluster

DAY = 86400.0


def everything(url: str) -> UsageRow:
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
    with psycopg.connect(url) as base:
        return base.execute(sql).fetchall()


def test_an_entry_counts_once_however_often_it_is_written(url: str) -> None:
    ledger = open_ledger(url)
    entries = [made(request_id=f"r{n}") for n in range(10)]
    assert ledger.insert(entries) == 10
    assert ledger.insert(entries) == 0
    assert ledger.insert([*entries, made(request_id="r10"), made(request_id="r10")]) == 1
    ledger.close()
    assert (everything(url).requests, everything(url).input_tokens) == (11, 11 * 12)


def test_usage_by_key_model_and_day(url: str) -> None:
    ledger = open_ledger(url)
    ledger.insert(
        [
            made(),
            made(input_tokens=100, output_tokens=50, reasoning_tokens=20, cached_tokens=64),
            made(status=422, error="content_filter", blocked=True),
            made(status=502, error="upstream_error", input_tokens=0, output_tokens=0, usage_source="none"),
            made(status=499, error="client_disconnected", usage_source="estimated"),
            made(at=JUNE_1 - 0.001),  # still May
            made(model="fast"),
            made(api_key_name="", api_key_id="", model="", status=401, error="invalid_api_key", input_tokens=0),
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
def test_filters(url: str, query: UsageQuery, requests: int) -> None:
    ledger = open_ledger(url)
    ledger.insert(
        [
            made(at=JUNE_1 - DAY),
            made(at=JUNE_1, api_key_name="team-b", api_key_id="id-of-b"),
            made(at=JUNE_1 + DAY / 2, model="fast"),
            made(at=JUNE_1 + DAY),
        ]
    )
    assert [row.requests for row in ledger.usage(query)] == [requests]
    ledger.close()


def test_every_field_of_an_entry_is_kept(url: str) -> None:
    assert set(NAMES) == {*Entry.__struct_fields__, "day"}
    ledger = open_ledger(url)
    tries = [
        Attempt(model="a", upstream="x", provider_key="up", kind="initial", status=503, error="upstream_status"),
        Attempt(model="b", upstream="y", provider_key="up", kind="fallback", status=200),
    ]
    ledger.insert([made(attempts=tries, stream=True, ttft_ms=3.25, finish="completed", client="10.0.0.1")])
    ledger.close()
    ((stream, ttft, finish, client, attempts),) = columns(url, "stream, ttft_ms, finish, client, attempts")
    assert (bool(stream), ttft, finish, client) == (True, 3.25, "completed", "10.0.0.1")
    found = msgspec.json.decode(attempts) if isinstance(attempts, str) else attempts
    assert [(one["model"], one["error"]) for one in found] == [("a", "upstream_status"), ("b", None)]


def test_a_database_without_an_encoding(cluster: Cluster) -> None:
    """It gives back bytes to whoever does not say how they are to be read."""
    url = cluster.database("SQL_ASCII")
    ledger = open_ledger(url)
    ledger.insert([made(model="gpt-für-alle", api_key_name="münchen")])
    [row] = ledger.usage(UsageQuery(by=("key", "model", "day")))
    ledger.close()
    assert (row.key, row.model) == ("münchen", "gpt-für-alle")
    assert everything(url).requests == 1


def test_a_ledger_of_an_older_version_gets_the_new_columns(url: str) -> None:
    ledger = open_ledger(url)
    ledger.insert([made(request_id="old")])
    ledger.close()
    for column in ("cached_tokens", "guardrails", "ttft_ms"):
        columns_sql = f"ALTER TABLE penstock_usage DROP COLUMN {column}"
        if url.startswith("sqlite"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
                file.execute(columns_sql)
        else:
            with psycopg.connect(url) as base:
                base.execute(columns_sql)
    ledger = open_ledger(url)
    assert ledger.insert([made(request_id="old"), made(request_id="new", cached_tokens=7)]) == 1
    ledger.close()
    assert everything(url).cached_tokens == 7


def test_several_gateways_can_open_a_new_ledger_at_once(url: str) -> None:
    def open_and_insert(gateway: int) -> int:
        ledger = open_ledger(url)
        try:
            return ledger.insert([made(request_id=f"{gateway}-{n}") for n in range(50)])
        finally:
            ledger.close()

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(open_and_insert, range(6))) == [50] * 6
    assert everything(url).requests == 300


def test_opening_waits_for_a_transaction_of_a_connection_without_wal(tmp_path: Path) -> None:
    path = f"{tmp_path}/usage.db"
    with sqlite3.connect(path, isolation_level=None) as writer, ThreadPoolExecutor(1) as thread:
        writer.execute("BEGIN IMMEDIATE")
        opening = thread.submit(lambda: open_ledger(f"sqlite:///{path}").close())
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.2)
        writer.execute("ROLLBACK")
        opening.result()


def test_one_bad_entry_of_many_is_an_answer_of_its_own(url: str) -> None:
    ledger = open_ledger(url)
    with pytest.raises(EntryRefusedError):
        ledger.insert([made(), made(input_tokens=2**63)])
    assert ledger.usage(UsageQuery(by=()))[0].requests == 0
    assert ledger.insert([made()]) == 1
    ledger.close()


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([made()])
    with sqlite3.connect(f"{tmp_path}/usage.db", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert everything(url).requests == 1
        writer.execute("ROLLBACK")
    ledger.close()


def test_a_ledger_is_not_made_by_asking(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no ledger at"):
        open_ledger(f"sqlite:///{tmp_path}/usage.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_something_else(tmp_path: Path, cluster: Cluster) -> None:
    with sqlite3.connect(tmp_path / "other.db") as file:
        file.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(UserError, match="without a ledger"):
        open_ledger(f"sqlite:///{tmp_path}/other.db", read_only=True)
    with pytest.raises(UserError, match="There is no ledger in"):
        open_ledger(cluster.database(), read_only=True)


@pytest.mark.parametrize(
    ("url", "sentence"),
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
def test_a_url_that_cannot_work_is_a_sentence_without_the_password(url: str, sentence: str) -> None:
    with pytest.raises((UserError, LedgerAwayError), match=sentence) as wrong:
        (check_url(url), open_ledger(url))
    assert "hush" not in str(wrong.value)


def test_the_password_is_in_no_message(cluster: Cluster) -> None:
    url = cluster.database()
    messages = []
    for wrong in (url.replace("penstock:", "nobody:"), url + "x", url.replace(QUOTED, QUOTED + "x")):
        with pytest.raises(LedgerAwayError) as away:
            open_ledger(wrong)
        messages.append(str(away.value))
    assert all(PASSWORD not in text and QUOTED not in text and "127.0.0.1" in text for text in messages), messages
