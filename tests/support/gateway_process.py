"""The real gateway in a separate process, with helpers to send requests and to read its ledger, log and metrics."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from support.fork_server import ForkedProcess
from support.programs import BIN, wait_for

CALLER = "sk-caller-0123456789abcdef"
UPSTREAM_SECRET = "sk-upstream-fedcba9876543210"
ALIAS = "gpt-4o-prod"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def resources(url: str, **more: Any) -> dict[str, Any]:
    """Return resources with one provider, one alias and one caller.

    Keyword arguments add entries to the collections, or replace fields of the only provider key (`provider_key=...`),
    model (`model=...`) or caller (`caller=...`).
    """
    model = {
        "display_name": ALIAS,
        "provider": "openai",
        "model_name": "gpt-4o-mini",
        "provider_key": "up",
        "retries": 0,
    }
    caller = {"display_name": "caller", "key_hash": sha256(CALLER), "allowed_models": ["*"]}
    key = {"display_name": "up", "provider": "openai", "adapter": "openai", "api_key": UPSTREAM_SECRET, "api_base": url}
    collections: dict[str, Any] = {
        "_format_version": "1",
        "provider_keys": [key | more.pop("provider_key", {})],
        "models": [model | more.pop("model", {})],
        "api_keys": [caller | more.pop("caller", {})],
    }
    for name, entries in more.items():
        collections[name] = [*collections.get(name, []), *entries]
    return collections


def keyword(name: str, *literals: str, **fields: Any) -> dict[str, Any]:
    patterns = [{"kind": "literal", "value": literal} for literal in literals]
    return {"name": name, "kind": "keyword", "patterns": patterns, **fields}


class Reply:
    """A complete reply of the gateway."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def id(self) -> str:
        return self.headers["x-penstock-request-id"]

    def __repr__(self) -> str:
        return f"<{self.status} {self.headers} {self.body[:500]!r}>"


class Stream:
    """A streamed reply of the gateway, read as it arrives."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        self.received = b""

    @property
    def id(self) -> str:
        return self.headers["x-penstock-request-id"]

    def next_event(self) -> bytes:
        """Return the next event with its blank line; empty at the end."""
        event = b""
        while not event.endswith(b"\n\n"):
            line = self._response.readline()
            if not line:
                break
            event += line
        self.received += event
        return event

    def read_rest(self) -> bytes:
        rest = self._response.read()
        self.received += rest
        return rest

    def close(self) -> None:
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):  # the gateway has closed it
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._response.close()
        self._connection.close()


class GatewayProcess:
    """A running gateway. `config` overrides keys of gateway.yaml."""

    def __init__(
        self,
        folder: Path,
        content: dict[str, Any],
        *,
        env: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        **config: Any,
    ) -> None:
        self.folder = folder
        self.resources = folder / "resources.yaml"
        self.log = folder / "gateway.log"
        self.ledger = folder / "usage.db"
        self._write(content)
        listen = {"port": 0, "status_port": 0, "drain_notice_s": 0, **config.pop("listen", {})}
        settings = {
            "listen": listen,
            "ledger": {"url": "sqlite:///usage.db", "spool": "spool"},
            "watch": False,
            **config,
        }
        (folder / "gateway.yaml").write_text(json.dumps(settings))
        environment = {
            name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ
        }
        self._log = self.log.open("wb")
        start = ForkedProcess if env is None else subprocess.Popen  # imports may read the environment
        self.process = start(
            [
                str(BIN / "penstock"),
                "gateway",
                "--resources",
                str(self.resources),
                "--config",
                str(folder / "gateway.yaml"),
                *arguments,
            ],
            cwd=folder,
            env=environment | {"HOME": str(folder)} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        wait_for(lambda: self.process.poll() is not None or self._announced(), what="the gateway's start")
        assert self.process.poll() is None, self.log_text()
        announced = self._announced()
        assert announced is not None
        self.port, self.status_port = int(announced[1]), int(announced[2])

    def _announced(self) -> re.Match[str] | None:
        return re.search(r" gateway on https?://\S+:(\d+) .* status and metrics on http://\S+:(\d+)\n", self.log_text())

    def _write(self, content: dict[str, Any] | str) -> None:
        new = self.resources.with_suffix(".new")
        new.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        new.replace(self.resources)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, timeout: float = 60.0) -> int:
        """Stop the gateway and return its exit status. The ledger is complete then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self._log.close()
        return self.process.returncode

    # -- resources ----------------------------------------------------------------------------------------------------

    def reload(self, content: dict[str, Any] | str) -> dict[str, Any]:
        """Write the file, send SIGHUP, and wait until the file is applied or rejected."""
        before = self.config()
        self._write(content)
        self.process.send_signal(signal.SIGHUP)

        def reloaded() -> Any:
            now = self.config()
            changed = (now["reloads"], now["failures"]) != (before["reloads"], before["failures"])
            return now if changed else None

        state: dict[str, Any] = wait_for(reloaded, what="the reload")
        return state

    def config(self) -> dict[str, Any]:
        state: dict[str, Any] = self.status("/status/config").json
        return state

    def status(self, path: str) -> Reply:
        return fetch(self.status_port, "GET", path)

    def metrics(self) -> str:
        return self.status("/metrics").body.decode()

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = CALLER,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        return fetch(self.port, method, path, body, _headers(key, headers))

    def post(self, path: str, body: Any, *, key: str | None = CALLER, headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, key=key, headers=headers)

    def respond(self, input_: Any = "Hi.", **more: Any) -> Reply:
        key = more.pop("key", CALLER)
        headers = more.pop("headers", None)
        return self.post("/v1/responses", {"model": ALIAS, "input": input_, **more}, key=key, headers=headers)

    def stream(
        self, path: str = "/v1/responses", body: Any = None, *, key: str = CALLER, timeout: float = 60.0
    ) -> Stream:
        """Request a stream. Missing members of `body` are added."""
        sent = {"model": ALIAS, "stream": True, **(body or {})}
        if path == "/v1/responses":
            sent.setdefault("input", "Hi.")
        elif path == "/v1/chat/completions":
            sent.setdefault("messages", [{"role": "user", "content": "Hi."}])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", path, json.dumps(sent), _headers(key, None))
        return Stream(connection)

    # -- ledger -------------------------------------------------------------------------------------------------------

    def count_entries(self) -> int:
        """Return the number of entries in the ledger."""
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            count: int = db.execute("SELECT COUNT(*) FROM penstock_usage").fetchone()[0]
            return count

    def ledger_rows(self) -> list[dict[str, Any]]:
        """Return all entries of the ledger, in the order of arrival."""
        if not self.ledger.exists():
            return []
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as db:
            db.row_factory = sqlite3.Row
            try:
                rows = [dict(row) for row in db.execute("SELECT * FROM penstock_usage ORDER BY at")]
            except sqlite3.OperationalError:
                return []
        db.close()
        for row in rows:
            for name in ("attempts", "guardrails", "phases_ms"):
                row[name] = json.loads(row[name])
        return rows

    def ledger_entry(self, reply: Reply | Stream | str) -> dict[str, Any]:
        """Return the only entry of a request; wait until it is there."""
        id_ = reply if isinstance(reply, str) else reply.id

        def entries() -> list[dict[str, Any]]:
            return [row for row in self.ledger_rows() if row["request_id"].partition("~")[0] == id_]

        matches: list[dict[str, Any]] = wait_for(entries, what=f"the entry of {id_}")
        assert len(matches) == 1, matches
        return matches[0]

    def in_flight(self) -> int:
        return sum(worker["in_flight"] for worker in self.config()["workers"])


def _headers(key: str | None, more: dict[str, str] | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return headers | (more or {})


def fetch(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = body if isinstance(body, bytes | str | None) else json.dumps(body)
        with contextlib.suppress(BrokenPipeError):  # the gateway may refuse a body before all of it is sent
            connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.getheaders(), response.read())
    finally:
        connection.close()
