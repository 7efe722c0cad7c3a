"""Fixtures with real databases: a SQLite file, and a PostgreSQL server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres_cluster import Cluster, find_programs


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    folder = find_programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: neither on the PATH nor under /usr/lib/postgresql")
    server = Cluster(folder)
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/usage.db"
    server: Cluster = request.getfixturevalue("cluster")
    return server.database()
