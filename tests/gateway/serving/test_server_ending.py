"""The main process ends all that it began, also when its start fails or when one of its parts does not end well."""

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
from penstock.processes import spawn
from support.programs import wait_for


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """Its workers end as they start."""

    def spawned(*_: object) -> subprocess.Popen[bytes]:
        return spawn("penstock.no_such_module")

    monkeypatch.setattr(Gateway, "_spawn", spawned)
    (tmp_path / "resources.yaml").write_text('_format_version: "1"\n')
    settings = {"listen": {"port": 0, "status_port": 0}, "ledger": {"url": "sqlite:///usage.db", "spool": "spool"}}
    (tmp_path / "gateway.yaml").write_text(json.dumps(settings))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield Gateway(str(tmp_path / "resources.yaml"), load_config(str(tmp_path / "gateway.yaml")))
    for number, handler in before.items():
        signal.signal(number, handler)


def running() -> set[str]:
    """What answers operators, moves usage and watches the file."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def test_a_start_that_fails_leaves_nothing_running(gateway: Gateway) -> None:
    with pytest.raises(RunError, match="during its start"):
        gateway.run(lambda _: None)
    wait_for(lambda: not running(), 10)


def test_a_part_that_does_not_end_well_keeps_no_other_from_ending(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Mover.stop

    def fails(mover: Mover, within_s: float = 5.0) -> int:
        stop(mover, within_s)
        raise OSError("no disk")

    monkeypatch.setattr(Mover, "stop", fails)
    with pytest.raises(OSError, match="no disk"):
        gateway.run(lambda _: None)
    wait_for(lambda: not running(), 10)
