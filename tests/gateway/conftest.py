"""A PostgreSQL server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator

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
