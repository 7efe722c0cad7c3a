"""The ledger in PostgreSQL. No sentence that leaves this file holds the password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.ledger import EntryRefusedError, LedgerAwayError, UsageQuery, UsageRow
from penstock.gateway.ledger.usage_table import COLUMNS, INDEXES, NAMES, TABLE, Column, usage_row, usage_sql
from penstock.secrets import REDACTED, redact_url

__all__ = ["PostgresLedger", "check_conninfo"]

_TYPES = {"text": "text", "integer": "bigint", "real": "double precision", "boolean": "boolean", "json": "jsonb"}
_DEFAULTS = {"text": "''", "integer": "0", "real": "0", "boolean": "false", "json": "'{}'"}
_PATIENCE: dict[str, Any] = {
    # A server that is gone without a word is noticed within seconds rather than in a quarter of an hour.
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_TEXT = {"client_encoding": "UTF8"}
"""What is written is UTF-8; of a database without an encoding (SQL_ASCII) it would come back as bytes."""
_STATEMENT_MS = 60_000
_LOCK = 7360_2015_1
"""Of those who bring the table up to date: creating it twice at once fails in PostgreSQL, IF NOT EXISTS or not."""

# One statement and one value for a batch, its entries as JSON: 16,000 entries/s at 10 µs each on this side, where arrays
# for the columns gave 7,500 at 100 µs (two cores, shared with the server).
_GIVEN = ", ".join(f"{column.name} {_TYPES[column.kind]}" for column in COLUMNS if column.name != "day")
_FIELDS = ", ".join(
    "to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')" if name == "day" else name for name in NAMES
)
_INSERT = (
    f"INSERT INTO {TABLE} ({', '.join(NAMES)}) "  # noqa: S608 - our own names
    f"SELECT {_FIELDS} FROM json_to_recordset(%s::json) AS given ({_GIVEN}) "
    "ON CONFLICT (request_id) DO NOTHING"
)


def check_conninfo(url: str) -> dict[str, Any]:
    authority, _, path = url.partition("://")[2].partition("/")
    try:
        # With a bare / in the password libpq takes the front of it for the host and the port, and names them in errors.
        if "@" in path.partition("?")[0] and "@" not in authority:
            raise ValueError
        return conninfo_to_dict(url)
    except (psycopg.Error, ValueError):  # which quote the part that they cannot read, and that may be the password
        raise UserError(
            f"The ledger's url {redact_url(url)} cannot be read; characters such as @ / : % in the name or the "
            "password are written %40 %2F %3A %25."
        ) from None


class PostgresLedger:
    def __init__(self, url: str, *, read_only: bool = False) -> None:
        given = check_conninfo(url)
        self._shown = redact_url(url)
        self._password = str(given.get("password") or "")
        with self._trouble():
            self._base = psycopg.connect(**{**_PATIENCE, "application_name": "penstock", **given, **_TEXT})
        try:
            with self._trouble():
                self._base.execute(f"SET statement_timeout = {_STATEMENT_MS}")
                self._base.commit()
                if not read_only:
                    self._prepare()
                elif not self._columns():
                    raise UserError(f"There is no ledger in {self._shown}; name the gateway's with --ledger URL.")
        except BaseException:
            self._base.close()
            raise

    def insert(self, entries: Sequence[Entry]) -> int:
        try:
            batch = msgspec.json.encode(entries).decode()
        except (ArithmeticError, TypeError, ValueError) as error:
            raise EntryRefusedError(str(error)) from error
        with self._trouble():
            try:
                with self._base.transaction():
                    return self._base.execute(_INSERT, [batch]).rowcount
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                raise EntryRefusedError(self._sentence(error)) from None

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        sql, values = usage_sql(query, "%s", "SUM")
        with self._trouble(), self._base.transaction():
            return [usage_row(query, found) for found in self._base.execute(sql, values)]

    def close(self) -> None:
        self._base.close()

    def _prepare(self) -> None:
        if {column.name for column in COLUMNS} <= self._columns():
            return  # a role that may write rows need not own the table
        with self._base.transaction():
            self._base.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            self._base.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({', '.join(map(_definition, COLUMNS))})")
            for column in COLUMNS:
                self._base.execute(f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS {_definition(column)}")
            for name, fields in INDEXES.items():
                self._base.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {TABLE} ({fields})")

    def _columns(self) -> set[str]:
        with self._base.transaction():
            found = self._base.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                [TABLE],
            )
            return {name for (name,) in found}

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise LedgerAwayError(f"The ledger {self._shown} cannot be used ({self._sentence(error)}).") from None

    def _sentence(self, error: psycopg.Error) -> str:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return text.replace(self._password, REDACTED) if self._password else text


def _definition(column: Column) -> str:
    if column.name == "request_id":
        return "request_id text PRIMARY KEY"
    kind = f"{column.name} {_TYPES[column.kind]}"
    return kind if column.null else f"{kind} NOT NULL DEFAULT {_DEFAULTS[column.kind]}"
