"""The databases of the response ids: a SQLite file in the spool folder, or PostgreSQL for gateways on several machines.

Each object is used by one thread. All errors are raised as OSError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    import sqlite3

    import psycopg

MOVE_S = 10.0
"""How long a statement that adds ids may take."""
LOOKUP_S = 1.0
"""How long a lookup may take."""
_CACHE_KB = 256
_TABLE = "response_ids"
_SQLITE_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {_TABLE}
    (number INTEGER PRIMARY KEY, id TEXT, key_id TEXT, account TEXT, at REAL, alias TEXT);
CREATE INDEX IF NOT EXISTS {_TABLE}_end ON {_TABLE} (substr(id, -8));
CREATE TRIGGER IF NOT EXISTS {_TABLE}_replace BEFORE INSERT ON {_TABLE} BEGIN
    DELETE FROM {_TABLE} WHERE substr(id, -8) = substr(new.id, -8) AND id = new.id;
END;
"""  # noqa: S608
_POSTGRES_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {_TABLE} (id text PRIMARY KEY, key_id text, account text, at double precision, alias text);
ALTER TABLE {_TABLE} ADD COLUMN IF NOT EXISTS alias text;
CREATE INDEX IF NOT EXISTS {_TABLE}_at ON {_TABLE} (at);
"""
_SQLITE_INSERT = f"""
INSERT INTO {_TABLE} (id, key_id, account, at, alias)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(?)
"""  # noqa: S608
_ANY_NUMBER = (1 << 63) - 1
"""Greater than the number of any row."""
_LOCK_ID = 7360_2015_2
"""Advisory lock for creating the table and for moving: one worker at a time, so that the records of an id stay in order."""
_COLUMNS = "key_id, account, at, coalesce(alias, '')"
_HAS_ALIAS = f"SELECT FROM pg_attribute WHERE attrelid = to_regclass('{_TABLE}') AND attname = 'alias'"

IdRow = tuple[str, str, str, float, str]
"""Response id, key id, account, Unix time, alias."""
FoundRow = tuple[str, str, float, str]
"""Key id, account, Unix time, alias."""


class SqliteIds:
    """The ids in a SQLite file. It is opened for each call, because most workers need it rarely.

    Rows are appended. Only the index, which has the last characters of the ids, grows at random places. In a table that is
    sorted by ids, each of them changes another page. SQLite reads a log itself: a call for each id would take the interpreter
    from the event loop as often."""

    def __init__(self, path: str, timeout_s: float = MOVE_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def add(self, logs: Callable[[], Iterable[bytes]], expire_before: float) -> None:
        """Add the lines of logs and delete expired ids in one transaction. `logs` yields them in pieces; it is called when no
        other process can add any."""
        import sqlite3

        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            for lines in logs():
                try:
                    database.execute(_SQLITE_INSERT, (_json_array(lines),))
                except sqlite3.OperationalError:  # perhaps zeros in the middle, after a power cut
                    valid = [line for line in lines.splitlines() if parse_line(line) is not None]
                    database.execute(_SQLITE_INSERT, (_json_array(b"\n".join(valid)),))
            # The rows are in the order of their time but for some seconds, so the expired ones are the first.
            first_kept = f"SELECT number FROM {_TABLE} WHERE at >= ? ORDER BY number LIMIT 1"  # noqa: S608
            database.execute(
                f"DELETE FROM {_TABLE} WHERE number < ifnull(({first_kept}), {_ANY_NUMBER})",  # noqa: S608
                (expire_before,),
            )
            database.commit()

    def find(self, response_id: str) -> FoundRow | None:
        query = f"SELECT {_COLUMNS} FROM {_TABLE} WHERE substr(id, -8) = substr(?1, -8) AND id = ?1"  # noqa: S608
        with self._open() as database:
            row: FoundRow | None = database.execute(query, (response_id,)).fetchone()
            return row

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self._path, timeout=self._timeout_s)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=OFF")
            database.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            database.executescript(_SQLITE_SCHEMA)
            if "alias" not in {column[1] for column in database.execute(f"PRAGMA table_info({_TABLE})")}:
                with contextlib.suppress(sqlite3.OperationalError):  # another worker has added it
                    database.execute(f"ALTER TABLE {_TABLE} ADD COLUMN alias TEXT")
            yield database
            database.commit()
        except sqlite3.Error as error:
            raise OSError(str(error)) from None
        finally:
            database.close()


def _json_array(lines: bytes) -> str:
    return f"[{lines.decode(errors='replace').rstrip().replace(chr(10), ',')}]"


def parse_line(line: bytes) -> IdRow | None:
    """Return the values of a line; None for one that was cut, and for zeros. Version 0.2 wrote no alias."""
    try:
        response_id, key_id, account, at, *alias = orjson.loads(line)
    except (ValueError, TypeError):
        return None
    return response_id, key_id, account, at, alias[0] if alias else ""


class PostgresIds:
    """The ids in PostgreSQL. The connection stays open; after an error the next call opens another."""

    def __init__(self, url: str, timeout_s: float = MOVE_S) -> None:
        from penstock.gateway.storage.postgres import PostgresServer

        self._timeout_ms = int(timeout_s * 1000)
        self._server = PostgresServer(url, what="response id")
        self._connection: psycopg.Connection | None = None

    def add(self, logs: Callable[[], Iterable[bytes]], expire_before: float) -> None:
        with self._transaction() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_ID,))
            # Only the newest row of an id: a statement cannot change a row twice.
            rows = (row for lines in logs() for line in lines.splitlines() if (row := parse_line(line)) is not None)
            newest = {(stored := _stored_id(row[0])): (stored, *row[1:]) for row in rows}
            columns = list(zip(*newest.values(), strict=True))
            if columns:
                cursor.execute(
                    f"INSERT INTO {_TABLE} (id, key_id, account, at, alias) "  # noqa: S608
                    "SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[], %s::text[]) "
                    "ON CONFLICT (id) DO UPDATE SET (key_id, account, at, alias) "
                    "= (excluded.key_id, excluded.account, excluded.at, excluded.alias)",
                    [list(column) for column in columns],
                )
            cursor.execute(f"DELETE FROM {_TABLE} WHERE at < %s", (expire_before,))  # noqa: S608

    def find(self, response_id: str) -> FoundRow | None:
        query = f"SELECT {_COLUMNS} FROM {_TABLE} WHERE id = %s"  # noqa: S608
        with self._transaction() as connection:
            row = connection.execute(query, (_stored_id(response_id),)).fetchone()
            return (row[0], row[1], row[2], row[3]) if row else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        import psycopg

        try:
            connection = self._connection = self._connection or self._connect()
            with connection.transaction():
                yield connection
        except psycopg.Error as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise OSError(self._server.message(error)) from None

    def _connect(self) -> psycopg.Connection:
        connect_timeout = min(max(2, self._timeout_ms // 1000), 5)  # libpq waits for at least 2 s
        connection = self._server.connect(
            self._timeout_ms, connect_timeout=connect_timeout, tcp_user_timeout=self._timeout_ms
        )
        with connection.transaction():
            if connection.execute(_HAS_ALIAS).fetchone() is None:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_ID,))
                for statement in _POSTGRES_SCHEMA.strip().split(";\n"):
                    connection.execute(statement)
        return connection


def _stored_id(response_id: str) -> str:
    """Return an id as PostgreSQL stores it: its texts cannot contain NUL."""
    return response_id.replace("\0", "\ufffd")


IdDatabase = SqliteIds | PostgresIds


def check_id_url(url: str | None) -> None:
    """Raise UserError for an invalid URL. Do not connect: the gateway may start while the database is unavailable."""
    if url is not None:
        PostgresIds(url)
