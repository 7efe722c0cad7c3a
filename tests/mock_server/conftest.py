from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.mock_process import MockProcess
from support.mock_client import RawConnection


class RunningMock:
    """A server in its own process, and its request log."""

    def __init__(self, process: MockProcess, log: Path) -> None:
        self.process = process
        self.url = process.url
        self.log = log

    def connect(self) -> RawConnection:
        return RawConnection(self.url)

    def exchange(self, body: Any = None, **request: Any) -> Any:
        """Send a request on a new connection and read its reply."""
        with self.connect() as connection:
            return connection.exchange(body, **request)

    def stats(self) -> Any:
        return self.exchange(path="/mock/stats", method="GET").json

    def logged_requests(self) -> list[dict[str, Any]]:
        """Stop the server and read its log."""
        self.process.stop()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMock]:
    """One server for all tests that choose their behaviour with the X-Mock header."""
    log = tmp_path_factory.mktemp("mock") / "requests.jsonl"
    with MockProcess(Behaviour(), log=str(log)) as process:
        yield RunningMock(process, log)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a server with its own behaviour."""
    processes: list[MockProcess] = []

    def start_mock(**options: Any) -> RunningMock:
        log = tmp_path / f"requests-{len(processes)}.jsonl"
        process = MockProcess(Behaviour(**options), log=str(log), log_writes=True, log_hash=True)
        processes.append(process)
        process.start()
        return RunningMock(process, log)

    yield start_mock
    for process in processes:
        process.stop()
