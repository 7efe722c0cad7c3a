"""The interface of a ledger: insert each entry once, query sums by key, model and day."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

from penstock.errors import RunError, UserError
from penstock.extras import require_extra
from penstock.gateway.ledger.entry import Entry
from penstock.secrets import redact_url

DEFAULT_URL = "sqlite:///penstock-usage.db"
PURGE_BATCH = 5000

Dimension = Literal["key", "team", "model", "day"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
DEFAULT_DIMENSIONS: tuple[Dimension, ...] = ("key", "model", "day")


class LedgerUnavailableError(RunError):
    """The database cannot be reached or reports an error. Nothing was written; a later attempt may succeed."""


class EntryRefusedError(Exception):
    """The database works but rejects at least one of the entries. Nothing was written."""


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests to sum, and by which dimensions to group them."""

    by: tuple[Dimension, ...] = DEFAULT_DIMENSIONS
    since: float | None = None
    """Unix time, inclusive."""
    until: float | None = None
    """Unix time, exclusive."""
    keys: tuple[str, ...] = ()
    """Names or ids; empty selects all keys."""
    models: tuple[str, ...] = ()


class UsageRow(msgspec.Struct, kw_only=True):
    """Sums of one group. `key`, `team`, `model` and `day` are None if the query does not group by them, and empty if the
    requests have none."""

    key: str | None = None
    team: str | None = None
    model: str | None = None
    day: str | None = None
    """In UTC."""
    requests: int = 0
    errors: int = 0
    """Requests neither successful nor blocked: refusals, failures and disconnected callers."""
    blocked: int = 0
    """Requests blocked by a guardrail."""
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the output tokens."""
    cached_tokens: int = 0
    """Part of the input tokens."""
    estimated_tokens: int = 0
    """Input and output tokens that were estimated because no upstream reported them."""

    @property
    def estimated_share(self) -> float:
        tokens = self.input_tokens + self.output_tokens
        return self.estimated_tokens / tokens if tokens else 0.0


class Ledger(Protocol):
    """A ledger for use by one thread. Every method may raise LedgerUnavailableError."""

    def insert(self, entries: Sequence[Entry]) -> int:
        """Insert all entries durably, or none, and return how many are new. Skip entries whose request id exists.
        Raise EntryRefusedError if the database rejects an entry."""
        ...

    def usage(self, query: UsageQuery) -> list[UsageRow]: ...

    def purge(self, before: float, limit: int) -> int:
        """Delete up to `limit` entries that arrived before this Unix time, and return their number."""
        ...

    def close(self) -> None: ...


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
