"""The ledger in a SQLite file. Readers never wait for the writer (WAL); a commit is on disk when it returns."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.ledger import EntryRefusedError, Ledger, LedgerUnavailableError
from penstock.gateway.ledger.usage_table import COLUMNS, INDEXES, NAMES, TABLE, Column

_LOCK_TIMEOUT_S = 30.0
"""How long a statement waits for a lock. Gateways that create one ledger together queue for it with several fsyncs each."""
_LOCK_RETRY_S = 0.02
_DAY_S = 86400
_REFUSALS = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError),
    *(sqlite3.ProgrammingError, UnicodeEncodeError),  # a value of an unsupported type
)
_INSERT = (
    f"INSERT INTO {TABLE} ({', '.join(NAMES)}) VALUES ({', '.join('?' * len(NAMES))}) "  # noqa: S608 - constant names
    "ON CONFLICT (request_id) DO NOTHING"
)


class SqliteLedger(Ledger):
    placeholder, sum_function = "?", "TOTAL"
    types = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "boolean": "INTEGER", "json": "TEXT"}  # noqa: RUF012

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self._path = path
        if read_only and not os.path.exists(path):
            raise UserError(f"There is no ledger at {path}; give the URL of the gateway's ledger with --ledger.")
        if not read_only:
            self._create_private_file()
        self._connection = self._connect(read_only)
        try:
            with self._wrap_errors():
                if not read_only:
                    self._prepare_table()
                elif not self._columns():
                    raise UserError(
                        f"{path} is a database without a ledger; give the URL of the gateway's ledger with --ledger."
                    )
            status = os.stat(path)
            self._identity = (status.st_dev, status.st_ino)
        except BaseException:
            self._connection.close()
            raise

    def insert(self, entries: Sequence[Entry]) -> int:
        self._check_identity()
        with self._wrap_errors():
            before = self._connection.total_changes
            try:
                with self._connection:
                    self._connection.executemany(_INSERT, _rows(entries))
            except _REFUSALS as error:
                raise EntryRefusedError(str(error)) from error
            return self._connection.total_changes - before

    def close(self) -> None:
        self._connection.close()

    def _check_identity(self) -> None:
        """Raise if the file was moved or deleted: SQLite would still write to it, but readers would not find it."""
        try:
            status = os.stat(self._path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise LedgerUnavailableError(f"The ledger {self._path} was moved or deleted while it was in use.")

    def _create_private_file(self) -> None:
        """Create the file so that only its owner can read it; SQLite gives its -wal and -shm files the same mode."""
        with contextlib.suppress(OSError):  # it exists, or SQLite will report the error
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        if read_only and not os.access(os.path.dirname(self._path) or ".", os.W_OK):
            # A reader must create the -wal and -shm files, or know that nobody writes (immutable).
            mode = "ro" if os.path.exists(self._path + "-wal") else "ro&immutable=1"
        with self._wrap_errors():
            return sqlite3.connect(f"file:{quote(self._path)}?mode={mode}", uri=True, timeout=_LOCK_TIMEOUT_S)

    def _prepare_table(self) -> None:
        self._enable_wal()
        # The spool drops its copy after the commit, so the commit must be on disk. This costs one fsync per batch.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        self._connection.execute("PRAGMA cache_size = -8000")
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            fields = ", ".join(map(self._definition, COLUMNS))
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({fields})")
            existing = self._columns()
            for column in COLUMNS:
                if column.name not in existing:
                    self._connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN {self._definition(column)}")
            for name, fields in INDEXES.items():
                self._connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {TABLE} ({fields})")

    def _enable_wal(self) -> None:
        """Retry here: while another connection holds the write lock, SQLite returns SQLITE_BUSY for this statement
        at once, because it cannot wait without the risk of a deadlock."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOCK_RETRY_S)

    def _columns(self) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info({TABLE})")}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._wrap_errors(), self._connection:
            yield self._connection

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerUnavailableError(f"The ledger {self._path} cannot be used ({error}).") from error


def _getter(column: Column) -> Callable[[Entry], Any]:
    get: Callable[[Entry], Any] = attrgetter(column.name)
    if column.name == "day":
        return lambda entry: _day(int(entry.at // _DAY_S))
    if column.kind == "json":
        return lambda entry: msgspec.json.encode(get(entry)).decode()
    return get


def _rows(entries: Iterable[Entry]) -> list[list[Any]]:
    """Return the values of each entry in the order of `COLUMNS`, with JSON as text."""
    try:
        return [[get(entry) for get in _GETTERS] for entry in entries]
    except (ArithmeticError, TypeError, ValueError) as error:  # values of a wrong type, or out of range
        raise EntryRefusedError(str(error)) from error


@lru_cache(1000)
def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * _DAY_S))


_GETTERS = tuple(map(_getter, COLUMNS))
