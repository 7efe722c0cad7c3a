"""The gateway is ready only when callers can connect."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.gateway.resources.config_file import load_config
from penstock.gateway.serving.runtime import Runtime, WorkerState
from penstock.gateway.serving.server import Gateway


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    (tmp_path / "gateway.yaml").write_text(json.dumps({"listen": {"port": 0, "status_port": 0, "workers": 2}}))
    gateway = Gateway(str(tmp_path / "resources.yaml"), load_config(str(tmp_path / "gateway.yaml")))
    gateway._workers = [None, None]
    return gateway


@pytest.fixture
def runtime(gateway: Gateway) -> Iterator[Runtime]:
    runtime = Runtime.create(gateway.config)
    yield runtime
    runtime.remove()


def test_gateway_is_not_ready_until_a_worker_listens(gateway: Gateway, runtime: Runtime) -> None:
    runtime.state.write_slot(0, WorkerState(1, 1, 0, 0))
    assert gateway._ready(runtime)[0] is False
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", gateway.config.listen.port))
        listener.listen()
        ready, detail = gateway._ready(runtime)
        assert (ready, detail["workers"]) == (True, {"alive": 1, "configured": 2})
        runtime.state.clear_slot(0)
        assert gateway._ready(runtime)[0] is False
