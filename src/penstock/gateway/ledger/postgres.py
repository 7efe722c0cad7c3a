"""The ledger in PostgreSQL. No message from this module contains the password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec
import psycopg

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.ledger import EntryRefusedError, Ledger, LedgerUnavailableError
from penstock.gateway.ledger.usage_table import COLUMNS, INDEXES, NAMES, TABLE, Kind
from penstock.gateway.storage.postgres import PostgresServer

_TYPES: dict[Kind, str] = {
    "text": "text",
    "integer": "bigint",
    "real": "double precision",
    "boolean": "boolean",
    "json": "jsonb",
}
_STATEMENT_TIMEOUT_MS = 60_000
_TABLE_LOCK_ID = 7360_2015_1
"""Advisory lock for creating the table: two concurrent CREATE TABLE IF NOT EXISTS fail in PostgreSQL."""

# A batch is one statement with one JSON value: 16,000 entries/s at 10 µs of client CPU each. One array per column reached
# 7,500 entries/s at 100 µs (two cores, shared with the server).
_JSON_COLUMNS = ", ".join(f"{column.name} {_TYPES[column.kind]}" for column in COLUMNS if column.name != "day")
_SELECTED = ", ".join(
    "to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')" if name == "day" else name for name in NAMES
)
_INSERT = (
    f"INSERT INTO {TABLE} ({', '.join(NAMES)}) "  # noqa: S608 - constant names
    f"SELECT {_SELECTED} FROM json_to_recordset(%s::json) AS entry ({_JSON_COLUMNS}) "
    "ON CONFLICT (request_id) DO NOTHING"
)


class PostgresLedger(Ledger):
    placeholder, sum_function, types = "%s", "SUM", _TYPES

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._server = PostgresServer(url)
        with self._wrap_errors():
            self._connection = self._server.connect(_STATEMENT_TIMEOUT_MS)
        try:
            with self._wrap_errors():
                if not read_only:
                    self._prepare_table()
                elif not self._columns():
                    raise UserError(
                        f"There is no ledger in {self._server.redacted_url}; give the URL of the gateway's ledger with "
                        "--ledger."
                    )
        except BaseException:
            self._connection.close()
            raise

    def insert(self, entries: Sequence[Entry]) -> int:
        try:
            batch = msgspec.json.encode(entries).decode()
        except (ArithmeticError, TypeError, ValueError) as error:
            raise EntryRefusedError(str(error)) from error
        with self._wrap_errors():
            try:
                with self._connection.transaction():
                    return self._connection.execute(_INSERT, [batch]).rowcount
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                raise EntryRefusedError(self._server.message(error)) from None

    def close(self) -> None:
        self._connection.close()

    def _prepare_table(self) -> None:
        if {column.name for column in COLUMNS} <= self._columns():
            return  # a role that only inserts rows need not own the table
        with self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [_TABLE_LOCK_ID])
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} ({', '.join(map(self._definition, COLUMNS))})"
            )
            for column in COLUMNS:
                self._connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS {self._definition(column)}")
            for name, fields in INDEXES.items():
                self._connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {TABLE} ({fields})")

    def _columns(self) -> set[str]:
        with self._connection.transaction():
            rows = self._connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                [TABLE],
            )
            return {name for (name,) in rows}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        with self._wrap_errors(), self._connection.transaction():
            yield self._connection

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise LedgerUnavailableError(
                f"The ledger {self._server.redacted_url} cannot be used ({self._server.message(error)})."
            ) from None
