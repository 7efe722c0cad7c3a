"""Connections to PostgreSQL. No message from this module contains the password."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import UserError
from penstock.secrets import REDACTED, redact_url

_CONNECTION_TIMEOUTS: dict[str, Any] = {
    # Detect a server that vanished without closing the connection in seconds; the TCP defaults take 15 minutes.
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_ENCODING = {"client_encoding": "UTF8"}
"""Without this, a database with the encoding SQL_ASCII returns text as bytes."""


class PostgresServer:
    """The server and the database that a URL names."""

    def __init__(self, url: str, *, what: str = "ledger") -> None:
        """Raise UserError if the URL is invalid. `what` names its purpose in the message."""
        self.redacted_url = redact_url(url)
        self._parameters = self._parse(url, what)
        self._password = str(self._parameters.get("password") or "")

    def _parse(self, url: str, what: str) -> dict[str, Any]:
        authority, _, path = url.partition("://")[2].partition("/")
        try:
            # If the password contains a bare /, libpq parses its start as host and port and quotes them in errors.
            if "@" in path.partition("?")[0] and "@" not in authority:
                raise ValueError
            return conninfo_to_dict(url)
        except (psycopg.Error, ValueError):  # hidden: they quote the invalid part, which may be the password
            raise UserError(
                f"The {what} URL {self.redacted_url} cannot be read; write @ / : % in the user name or the password as "
                "%40 %2F %3A %25."
            ) from None

    def connect(self, statement_timeout_ms: int, **parameters: Any) -> psycopg.Connection:
        """Open a connection. `parameters` override the defaults, but not the URL. Raise psycopg.Error if that fails."""
        defaults = {**_CONNECTION_TIMEOUTS, "application_name": "penstock", **parameters}
        connection = psycopg.connect(**{**defaults, **self._parameters, **_ENCODING})
        try:
            connection.execute(f"SET statement_timeout = {statement_timeout_ms}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def message(self, error: psycopg.Error) -> str:
        """Return the text of an error without the password."""
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return text.replace(self._password, REDACTED) if self._password else text
