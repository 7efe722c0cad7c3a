"""Programs that tests start: a mock server with its request log, the commands with their artifacts, and a server that
records requests byte for byte. Their fixtures are in `conftest`."""

from __future__ import annotations

import csv
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from support.fork_server import ForkedProcess, running_server
from support.http_server import HttpReply, HttpRequest, HttpServer

BIN = Path(sys.executable).parent
LIMIT_S = 150.0
"""The longest time for a command in a test."""


class MockServer:
    """The mock in a child process that ends with this process. Its log is complete once it is stopped."""

    def __init__(self, folder: Path, options: dict[str, Any], *, port: int, writes: bool, hashes: bool) -> None:
        self.log = folder / "requests.jsonl"
        parent = running_server().pid
        settings = {"port": port, "log": str(self.log), "log_writes": writes, "log_hash": hashes, "parent": parent}
        arguments = [f"{name}={_option_text(value)}" for name, value in options.items()]
        self._process = ForkedProcess(
            [sys.executable, "-m", "penstock.mock_server", json.dumps(settings), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.isdigit():
            stderr = self._process.communicate()[1].decode()
            raise OSError(f"the mock did not start: {stderr}")
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate(timeout=60)

    def logged_requests(self) -> list[dict[str, Any]]:
        """Stop the server and return its log entries of model requests, in order of arrival."""
        self.stop()
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sorted((entry for entry in entries if entry["k"] is not None), key=lambda entry: entry["k"])


def _option_text(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


class Outcome:
    """The exit status, output and artifacts of a finished command."""

    def __init__(self, status: int, out: str, err: str, folder: Path) -> None:
        self.status = status
        self.out = out
        self.err = err
        self.folder = folder

    def __repr__(self) -> str:
        return f"<exit status {self.status}>\n{self.out}\n{self.err}"

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self.text("profile_export_aiperf.json"))
        return summary

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records, in the order in which the requests were sent."""
        records = [json.loads(line) for line in self.text("profile_export.jsonl").splitlines()]
        return sorted(records, key=lambda r: r["metadata"]["request_start_ns"])

    @cached_property
    def csv(self) -> dict[str, dict[str, str]]:
        """Cells of both sections, by metric and column."""
        rows: dict[str, dict[str, str]] = {}
        columns: list[str] = []
        for row in csv.reader(self.text("profile_export_aiperf.csv").splitlines()):
            if row and row[0] == "Metric":
                columns = row[1:]
            elif row:
                rows[row[0]] = dict(zip(columns, row[1:], strict=True))
        return rows

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The bodies of inputs.json, in order."""
        return [body for session in json.loads(self.text("inputs.json"))["data"] for body in session["payloads"]]

    def values(self, tag: str) -> list[Any]:
        """Return the values of a metric in the records that have it."""
        return [r["metrics"][tag]["value"] for r in self.records if tag in r["metrics"]]

    def errors(self) -> list[dict[str, Any]]:
        return [{**group["error_details"], "count": group["count"]} for group in self.summary["error_summary"]]

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


class Running:
    """A command that is running."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def interrupt(self, signal_number: int = signal.SIGINT) -> None:
        self.process.send_signal(signal_number)

    def wait(self, timeout: float = LIMIT_S) -> Outcome:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the command did not end within {timeout:g} s:\n{out}\n{err}") from None
        return Outcome(self.process.returncode, out, err, self.folder)


class Program:
    """Runs the commands in their own folder, without network access and without the user's environment.

    A command is a child of the fork server, unless a test changes its environment, which imports may read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0
        self._started: list[subprocess.Popen[str]] = []
        inherited = {
            name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH") if name in os.environ
        }
        self.env = inherited | {
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hf"),
            "PYTHONUTF8": "1",
        }
        self._usual_env = dict(self.env)

    def start(self, *arguments: Any, command: str = "aiperf", folder: Path | None = None, **env: str) -> Running:
        environment = self.env | env
        start = ForkedProcess if environment == self._usual_env else subprocess.Popen
        process = start(
            [str(BIN / command), *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return Running(process, folder or self.folder)

    def run(self, *arguments: Any, command: str = "aiperf", timeout: float = LIMIT_S, **env: str) -> Outcome:
        return self.start(*arguments, command=command, **env).wait(timeout)

    def begin(
        self,
        url: str,
        *flags: Any,
        model: str = "mock-model",
        texts: int | None = 3,
        into: Path | None = None,
        **env: str,
    ) -> Running:
        """Start `aiperf profile` with its own artifact folder, or with `into`.

        By default the prompts are a file of three lines and the server counts tokens, so no tokenizer is loaded;
        `texts=None` leaves both to the flags.
        """
        self._runs += 1
        folder = into or self.folder / f"run-{self._runs}"
        arguments: list[Any] = ["profile", "--model", model, "--url", url, "--artifact-dir", folder]
        if texts is not None:
            arguments += ["--input-file", self.prompts(texts), "--use-server-token-count"]
        return self.start(*arguments, *flags, folder=folder, **env)

    def profile(self, url: str, *flags: Any, timeout: float = LIMIT_S, **options: Any) -> Outcome:
        return self.begin(url, *flags, **options).wait(timeout)

    def prompts(self, count: int) -> Path:
        path = self.folder / f"prompts-{count}.jsonl"
        path.write_text("".join(json.dumps({"text": f"Prompt number {n}."}) + "\n" for n in range(count)))
        return path

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()


class Capture(HttpServer):
    """A server that records every request byte for byte, and sends its answers in turn."""

    ANSWER: dict[str, Any] = {  # noqa: RUF012
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Yes"}, "text": "Yes", "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
    }

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, list[str]], bytes]] = []
        """(path, headers by lower-case name, body)."""
        self.answers: list[tuple[str, bytes]] = [("application/json", json.dumps(self.ANSWER).encode())]
        """(content type, body)."""
        super().__init__(self._answer)

    def _answer(self, request: HttpRequest, _: int) -> HttpReply:
        if request.method == "GET" and request.path.endswith("/metrics"):  # is read before a run, but is not part of it
            return HttpReply(status=404)
        headers: dict[str, list[str]] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), []).append(value)
        self.requests.append((request.path, headers, request.body))
        content_type, answer = self.answers[(len(self.requests) - 1) % len(self.answers)]
        return HttpReply(answer, headers={"Content-Type": content_type})

    def wrap(self, context: ssl.SSLContext) -> None:
        """Use TLS for all further connections."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.requests]


def wait_for(condition: Callable[[], Any], timeout: float = 60.0, what: str = "it") -> Any:
    """Call `condition` until it returns a true value, and return that value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.01)
    return value
