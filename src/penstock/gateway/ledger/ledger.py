"""What a ledger is: entries go in once each, sums come out by key, model and day."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

from penstock.errors import RunError, UserError
from penstock.extras import require_extra
from penstock.gateway.ledger.entry import Entry
from penstock.secrets import redact_url

__all__ = [
    "DEFAULT_URL",
    "DIMENSIONS",
    "Dimension",
    "EntryRefusedError",
    "Ledger",
    "LedgerAwayError",
    "UsageQuery",
    "UsageRow",
    "check_url",
    "open_ledger",
]

DEFAULT_URL = "sqlite:///penstock-usage.db"

Dimension = Literal["key", "model", "day"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class LedgerAwayError(RunError):
    """The database cannot be reached or does not do what it is told; nothing was written, and later it may work."""


class EntryRefusedError(Exception):
    """The database is well and takes all but one of these entries; nothing was written."""


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    by: tuple[Dimension, ...] = DIMENSIONS
    since: float | None = None
    """Unix time, included."""
    until: float | None = None
    """Unix time, not included."""
    keys: tuple[str, ...] = ()
    """Names or ids; none is all."""
    models: tuple[str, ...] = ()


class UsageRow(msgspec.Struct, kw_only=True):
    """`key`, `model` and `day` are None where they were not asked for, and empty where the requests had none."""

    key: str | None = None
    model: str | None = None
    day: str | None = None
    """In UTC."""
    requests: int = 0
    errors: int = 0
    """Not a success and not blocked: refusals, failures, and callers that went away."""
    blocked: int = 0
    """By a guardrail."""
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the output tokens."""
    cached_tokens: int = 0
    """Part of the input tokens."""
    estimated_tokens: int = 0
    """Input and output tokens that no upstream reported."""

    @property
    def estimated_share(self) -> float:
        tokens = self.input_tokens + self.output_tokens
        return self.estimated_tokens / tokens if tokens else 0.0


class Ledger(Protocol):
    """For one thread. Everything may raise LedgerAwayError."""

    def insert(self, entries: Sequence[Entry]) -> int:
        """All or nothing, durably; an entry whose request id is there already changes nothing. Returns how many are
        new. May raise EntryRefusedError."""
        ...

    def usage(self, query: UsageQuery) -> list[UsageRow]: ...

    def close(self) -> None: ...


def open_ledger(url: str, *, read_only: bool = False) -> Ledger:
    """Connects, and brings the tables up to date unless it is only read. A url that can never work is a UserError."""
    if _is_postgres(url):
        require_extra("gateway", "A ledger in PostgreSQL", "psycopg")
        from penstock.gateway.ledger.postgres import PostgresLedger

        return PostgresLedger(url, read_only=read_only)
    from penstock.gateway.ledger.sqlite import SqliteLedger

    return SqliteLedger(_sqlite_path(url), read_only=read_only)


def check_url(url: str) -> None:
    """Find out what is wrong with a url without connecting: a database may well be away when the gateway starts."""
    if _is_postgres(url):
        from penstock.gateway.ledger.postgres import check_conninfo

        check_conninfo(url)
        return
    path = _sqlite_path(url)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UserError(
            f"The ledger {path} needs the folder {folder}, which does not exist; make it, or change the url."
        )
    if os.path.isdir(path):
        raise UserError(f"The ledger {path} is a folder; name a file.")


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def _sqlite_path(url: str) -> str:
    """`sqlite:///usage.db` lies here, `sqlite:////var/lib/usage.db` there; a plain path is a file too."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        path = url
    elif scheme == "sqlite" and rest.startswith("/"):
        path = rest[1:]
    else:
        raise UserError(
            f"The ledger's url {redact_url(url)} is neither sqlite:///FILE nor postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    if not path or path == ":memory:":
        raise UserError("The ledger's url names no file; write sqlite:///FILE.")
    return path
