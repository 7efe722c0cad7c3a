"""The interface of a ledger: insert each entry once, query sums by key, model and day."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.errors import RunError, UserError
from penstock.extras import require_extra
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.usage_table import (
    Column,
    Kind,
    UsageQuery,
    UsageRow,
    purge_sql,
    usage_row,
    usage_sql,
)
from penstock.secrets import redact_url

DEFAULT_URL = "sqlite:///penstock-usage.db"
PURGE_BATCH = 5000
_DEFAULTS = {"text": "''", "integer": "0", "real": "0", "boolean": "false", "json": "'{}'"}


class LedgerUnavailableError(RunError):
    """The database cannot be reached or reports an error. Nothing was written; a later attempt may succeed."""


class EntryRefusedError(Exception):
    """The database works but rejects at least one of the entries. Nothing was written."""


class Ledger(ABC):
    """A ledger for use by one thread. Every method may raise LedgerUnavailableError."""

    placeholder: str
    """What stands for a value in a statement."""
    sum_function: str
    """The function that adds numbers. It must not overflow: they come from upstreams."""
    types: Mapping[Kind, str]

    @abstractmethod
    def insert(self, entries: Sequence[Entry]) -> int:
        """Insert all entries durably, or none, and return how many are new. Skip entries whose request id exists.
        Raise EntryRefusedError if the database rejects an entry."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that commits, or raises LedgerUnavailableError."""

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        sql, values = usage_sql(query, self.placeholder, self.sum_function)
        with self._transaction() as connection:
            return [usage_row(query, row) for row in connection.execute(sql, values)]

    def purge(self, before: float, limit: int) -> int:
        """Delete up to `limit` entries that arrived before this Unix time, and return their number."""
        with self._transaction() as connection:
            return int(connection.execute(purge_sql(self.placeholder), [before, limit]).rowcount)

    @abstractmethod
    def close(self) -> None: ...

    def _definition(self, column: Column) -> str:
        kind = f"{column.name} {self.types[column.kind]}"
        if column.name == "request_id":
            return f"{kind} PRIMARY KEY NOT NULL"
        return kind if column.null else f"{kind} NOT NULL DEFAULT {_DEFAULTS[column.kind]}"


def open_ledger(url: str, *, read_only: bool = False) -> Ledger:
    """Connect, and create or update the table unless `read_only`. Raise UserError for a URL that can never work."""
    if _is_postgres(url):
        require_extra("gateway", "A ledger in PostgreSQL", "psycopg")
        from penstock.gateway.ledger.postgres import PostgresLedger

        return PostgresLedger(url, read_only=read_only)
    from penstock.gateway.ledger.sqlite import SqliteLedger

    return SqliteLedger(_sqlite_path(url), read_only=read_only)


def purge_all(ledger: Ledger, before: float) -> int:
    """Delete all entries that arrived before this Unix time, in batches that lock the table for a moment only."""
    deleted = 0
    while batch := ledger.purge(before, PURGE_BATCH):
        deleted += batch
    return deleted


def check_url(url: str) -> None:
    """Raise UserError for an invalid URL. Do not connect: the gateway may start while the database is unavailable."""
    if _is_postgres(url):
        from penstock.gateway.storage.postgres import PostgresServer

        PostgresServer(url)
        return
    path = _sqlite_path(url)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UserError(
            f"The ledger {path} needs the folder {folder}, which does not exist; create it or change the URL."
        )
    if os.path.isdir(path):
        raise UserError(f"The ledger {path} is a folder; give the path of a file.")


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def _sqlite_path(url: str) -> str:
    """Return the path in a SQLite URL: relative after three slashes, absolute after four. Accept a plain path too."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url
    elif scheme == "sqlite" and rest.startswith("/"):
        path = rest[1:]
    else:
        raise UserError(
            f"The ledger URL {redact_url(url)} is neither sqlite:///FILE nor postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    if not path or path == ":memory:":
        raise UserError("The ledger URL names no file; write sqlite:///FILE.")
    return path
