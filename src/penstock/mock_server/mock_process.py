"""A mock server in a child process, for `--url mock://?ttft=50&itl=10`.

A separate process takes no CPU time from the client that it measures.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from types import TracebackType
from urllib.parse import parse_qsl

import msgspec

from penstock.errors import RunError, UserError
from penstock.mock_server.behaviour import Behaviour, read_options, write_options
from penstock.mock_server.server_settings import ServerSettings
from penstock.processes import spawn

SCHEME = "mock://"
START_S = 20.0
STOP_S = 5.0


def parse_mock_url(url: str) -> Behaviour:
    """Return the behaviour that a mock:// URL describes."""
    authority, _, query = url[len(SCHEME) :].partition("?")
    if not url.lower().startswith(SCHEME) or authority not in ("", "/"):
        raise UserError(
            f"{url!r} is not a mock URL: write mock:// and options after a question mark, as in mock://?ttft=50"
        )
    return read_options(parse_qsl(query, keep_blank_values=True), where=f"in {url}")


class MockProcess:
    """Context manager that runs a mock server and has its `url`. The server ends with it, and also when this process ends."""

    def __init__(
        self, behaviour: Behaviour, *, log: str | None = None, log_writes: bool = False, log_hash: bool = False
    ) -> None:
        self._behaviour = behaviour
        self._settings = ServerSettings(
            port=0,
            log=log,
            log_writes=log_writes,
            log_hash=log_hash,
            parent=os.getpid(),
            parent_thread=threading.current_thread() is threading.main_thread(),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> MockProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._process = process = spawn(
            "penstock.mock_server",
            msgspec.json.encode(self._settings).decode(),
            *write_options(self._behaviour),
            stdout=subprocess.PIPE,
            # Ctrl-C in the terminal must not end the server: the benchmark finishes its requests in flight first.
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if selector.select(START_S) else b""
        except BaseException:  # Ctrl-C: `__exit__` is not called when `__enter__` raises
            self.stop()
            raise
        if not line.strip().isdigit():
            self.stop()
            raise RunError(f"the mock server did not start (exit status {process.returncode}); its message is above")
        self.url = f"http://127.0.0.1:{int(line)}"

    def stop(self) -> None:
        """End the server. When this returns, its log is complete."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
