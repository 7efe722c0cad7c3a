from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.gateway.limits import SharedTable
from penstock.gateway.limits.local_limiter import LocalLimiter
from support.limit_objects import temporary_table
from support.redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: `apt-get install redis-server`")
    # a short path: a socket path may have at most 107 bytes
    server = RedisServer(tmp_path_factory.mktemp("r"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def table_path(tmp_path: Path) -> str:
    return str(tmp_path / "limits")


@pytest.fixture
def local() -> Iterator[Callable[[], LocalLimiter]]:
    """Return a function that creates limiters, each with its own table."""
    tables: list[SharedTable] = []

    def make() -> LocalLimiter:
        tables.append(temporary_table(windows=1024, slots=64))
        return LocalLimiter(tables[-1])

    yield make
    for table in tables:
        table.close()
