"""URLs of real databases: a SQLite file, and a PostgreSQL server that the tests start."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.postgres_cluster import Cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/usage.db"
    server: Cluster = request.getfixturevalue("cluster")
    return server.database()
