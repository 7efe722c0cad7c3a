"""One upstream and one gateway for each test file. A test that needs other resources reloads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, resources
from support.programs import wait_for
from support.scripted_upstream import Upstream, normal_reply


@pytest.fixture(scope="module")
def server() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="module")
def running(server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), resources(server.url))
    yield process
    process.stop()


@pytest.fixture
def upstream(server: Upstream) -> Upstream:
    server.use_script(normal_reply)
    return server


@pytest.fixture
def gateway(running: GatewayProcess, upstream: Upstream) -> Iterator[GatewayProcess]:
    """The gateway of the file. Its resources are restored after each test."""
    yield running
    assert "internal error" not in running.log_text()
    # The next test's first request must not meet a connection that this test's script is about to close.
    wait_for(lambda: upstream.quiet, what="the end of the upstream's scripts")
    running.reload(resources(upstream.url))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts a separate gateway: `start(resources, **config)`."""
    started: list[GatewayProcess] = []

    def make(resource_file: dict[str, Any], **config: Any) -> GatewayProcess:
        folder = tmp_path / f"gateway-{len(started)}"
        folder.mkdir()
        started.append(GatewayProcess(folder, resource_file, **config))
        return started[-1]

    yield make
    for process in started:
        process.stop()
