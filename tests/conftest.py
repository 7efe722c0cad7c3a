"""Fixtures for tests of whole programs; their classes are in `support.programs`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.programs import Capture, MockServer, Program

# A single example may take long on a shared machine. Each run uses the same examples, so that no change fails because of an
# example that it has nothing to do with; `--hypothesis-profile random` draws new ones.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("shared", settings.get_profile("random"), derandomize=True)
settings.load_profile("shared")

# A shell script ignores SIGINT in its background jobs, and the commands that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name unprintable bytes after their argument.

    A body that is built at import, such as gzip with a timestamp, would give a test another name in each xdist worker.
    """
    unreadable = isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable() and len(val) <= 40)
    return argname if unreadable else None


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Callable[..., MockServer]]:
    """A function that starts a mock: `mock(ttft=20, error=500)`. `writes` and `hashes` add fields to its log."""
    servers: list[MockServer] = []

    def start(*, port: int = 0, writes: bool = False, hashes: bool = False, **options: Any) -> MockServer:
        folder = tmp_path / f"mock-{len(list(tmp_path.glob('mock-*')))}"  # one that did not start has a folder, too
        folder.mkdir()
        servers.append(MockServer(folder, options, port=port, writes=writes, hashes=hashes))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    folder = tmp_path / "work"
    folder.mkdir()
    program = Program(folder)
    yield program
    program.end()


@pytest.fixture
def capture() -> Iterator[Capture]:
    capture = Capture()
    yield capture
    capture.stop()
