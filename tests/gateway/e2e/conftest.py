"""One upstream and one gateway for each file of tests; a test that needs other resources reloads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, resources
from support.scripted_upstream import Upstream, answer


@pytest.fixture(scope="module")
def server() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def running(server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    made = GatewayProcess(tmp_path_factory.mktemp("gateway"), resources(server.url))
    yield made
    made.stop()


@pytest.fixture
def upstream(server: Upstream) -> Upstream:
    server.does(answer)
    return server


@pytest.fixture
def gateway(running: GatewayProcess, upstream: Upstream) -> Iterator[GatewayProcess]:
    """With the plain resources, whatever the test before it did."""
    yield running
    assert "internal error" not in running.said()
    running.reload(resources(upstream.url))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """A gateway of one's own: `start(resources, **config)`."""
    started: list[GatewayProcess] = []

    def make(given: dict[str, Any], **config: Any) -> GatewayProcess:
        folder = tmp_path / f"gateway-{len(started)}"
        folder.mkdir()
        started.append(GatewayProcess(folder, given, **config))
        return started[-1]

    yield make
    for process in started:
        process.stop()
