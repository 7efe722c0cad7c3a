from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.mock.behaviour import Behaviour
from penstock.mock.mock_process import MockProcess
from support.mock_client import Wire


class Running:
    """A server in its own process, and its log."""

    def __init__(self, beside: MockProcess, log: Path) -> None:
        self.beside = beside
        self.url = beside.url
        self.log = log

    def wire(self) -> Wire:
        return Wire(self.url)

    def ask(self, body: Any = None, **how: Any) -> Any:
        with self.wire() as wire:
            return wire.ask(body, **how)

    def stats(self) -> Any:
        return self.ask(path="/mock/stats", method="GET").json

    def truth(self) -> list[dict[str, Any]]:
        """The log, once the server has ended."""
        self.beside.stop()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that ask for their behaviour with X-Mock."""
    log = tmp_path_factory.mktemp("mock") / "truth.jsonl"
    with MockProcess(Behaviour(), log=str(log)) as beside:
        yield Running(beside, log)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts servers with a behaviour of their own."""
    begun: list[MockProcess] = []

    def begin(**options: Any) -> Running:
        log = tmp_path / f"truth{len(begun)}.jsonl"
        beside = MockProcess(Behaviour(**options), log=str(log), log_writes=True, log_hash=True)
        begun.append(beside)
        beside.start()
        return Running(beside, log)

    yield begin
    for beside in begun:
        beside.stop()
