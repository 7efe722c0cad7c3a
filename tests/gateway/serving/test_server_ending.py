"""The main process cleans up completely, even if its start or one of its cleanup steps fails."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import RunError
from penstock.gateway.ledger.mover import Mover
from penstock.gateway.resources.config_file import load_config
from penstock.gateway.serving.server import Gateway
from penstock.gateway.serving.worker_pool import WorkerPool
from penstock.processes import spawn
from support.programs import wait_for


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """A gateway whose workers end during their start."""

    def spawned(*_: object) -> subprocess.Popen[bytes]:
        return spawn("penstock.no_such_module")

    monkeypatch.setattr(WorkerPool, "_spawn", spawned)
    (tmp_path / "resources.yaml").write_text('_format_version: "1"\n')
    settings = {"listen": {"port": 0, "status_port": 0}, "ledger": {"url": "sqlite:///usage.db", "spool": "spool"}}
    (tmp_path / "gateway.yaml").write_text(json.dumps(settings))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield Gateway(str(tmp_path / "resources.yaml"), load_config(str(tmp_path / "gateway.yaml")))
    for number, handler in before.items():
        signal.signal(number, handler)


def running() -> set[str]:
    """Return the names of the gateway's threads."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def test_failed_start_leaves_no_threads(gateway: Gateway) -> None:
    with pytest.raises(RunError, match="during its start"):
        gateway.run(lambda _: None)
    wait_for(lambda: not running())


def test_failing_cleanup_does_not_prevent_the_others(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Mover.stop

    def fails(mover: Mover, within_s: float = 5.0) -> int:
        stop(mover, within_s)
        raise OSError("no disk")

    monkeypatch.setattr(Mover, "stop", fails)
    with pytest.raises(OSError, match="no disk"):
        gateway.run(lambda _: None)
    wait_for(lambda: not running())
