"""Fixtures for tests of whole programs; `programs` holds what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.programs import Capture, MockServer, Program

# On a machine that others use, too, any example may take a while.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that nobody can read are named by their argument: a body made at import, such as one that gzip stamped
    with the time, must not give a test another name in each process that collects it."""
    unreadable = isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable() and len(val) <= 40)
    return argname if unreadable else None


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Callable[..., MockServer]]:
    """Start a mock: `mock(ttft=20, itl=2, error=500, error_rate=0.5)`; `writes` and `hashes` add to its log."""
    started: list[MockServer] = []

    def start(*, port: int = 0, writes: bool = False, hashes: bool = False, **options: Any) -> MockServer:
        folder = tmp_path / f"mock-{len(started)}"
        folder.mkdir()
        started.append(MockServer(folder, options, port=port, writes=writes, hashes=hashes))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    folder = tmp_path / "work"
    folder.mkdir()
    made = Program(folder)
    yield made
    made.end()


@pytest.fixture
def capture() -> Iterator[Capture]:
    made = Capture()
    yield made
    made.stop()
