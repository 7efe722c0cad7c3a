"""A reload that fails is reported and retried, in the main process and in the workers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.limits import open_limiter
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.resources.config import GatewayConfig, LedgerConfig, LimitsConfig
from penstock.gateway.resources.snapshot import Snapshot
from penstock.gateway.serving.app import App
from penstock.gateway.serving.reload import Reloader
from penstock.gateway.serving.runtime import Runtime
from support.gateway_process import resources, sha256
from support.ledger_entries import Messages
from support.limit_objects import temporary_table
from support.programs import wait_for


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    config = GatewayConfig(ledger=LedgerConfig(url=f"sqlite:///{tmp_path}/usage.db", spool=str(tmp_path / "spool")))
    runtime = Runtime.create(config)
    yield runtime
    runtime.remove()


@pytest.fixture
def reloader(tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Reloader:
    monkeypatch.setattr("penstock.gateway.serving.reload.RETRY_S", 0.05)
    path = tmp_path / "resources.yaml"
    path.write_text(json.dumps(resources("http://127.0.0.1:1")))
    reloader = Reloader(str(path), runtime, os.environ, Messages())
    reloader.load_first()
    return reloader


def poll_until(reloader: Reloader, condition: Callable[[], bool]) -> None:
    wait_for(lambda: reloader.poll() or condition())  # type: ignore[func-returns-value]


def fail_once(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    errors = [error]

    def wrapper(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*arguments)

    return wrapper


def test_failed_publication_is_retried_without_a_change_of_the_file(
    reloader: Reloader, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "publish", fail_once(runtime.publish, OSError("no space")))
    reloader.request_reload()
    poll_until(reloader, lambda: reloader.status()["failures"] == 1)
    poll_until(reloader, lambda: reloader.status()["reloads"] == 1)
    assert reloader.status()["state"] == "synced"
    assert runtime.state.generation == 2


def test_changed_key_file_is_reloaded(tmp_path: Path, runtime: Runtime) -> None:
    key = tmp_path / "caller.key"
    path = tmp_path / "resources.yaml"
    content = resources("http://127.0.0.1:1", caller={"key_file": "caller.key"})
    del content["api_keys"][0]["key_hash"]
    path.write_text(json.dumps(content))
    key.write_text("sk-first")
    reloader = Reloader(str(path), runtime, os.environ, Messages())
    reloader.load_first()
    key.unlink()
    poll_until(reloader, lambda: reloader.status()["state"] == "degraded")
    key.write_text("sk-second")
    poll_until(reloader, lambda: reloader.status()["state"] == "synced")
    assert list(runtime.snapshot()[1].caller_keys) == [sha256("sk-second")]


def test_worker_that_cannot_load_new_resources_is_reported_and_retries(
    reloader: Reloader, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that was revoked must not stay valid in one of the workers."""
    monkeypatch.setattr("penstock.gateway.serving.app.LOAD_RETRY_S", 0.5)

    def worker() -> dict[str, Any]:
        (state,) = reloader.status()["workers"]  # type: ignore[misc]
        return dict(state)

    async def scenario() -> None:
        limiter = open_limiter(LimitsConfig(), temporary_table(windows=64, slots=16))
        app = App(runtime, 0, limiter, Recorder(runtime.config.ledger.spool, 0))
        app.start(asyncio.get_running_loop())
        assert (worker()["generation"], reloader.status()["state"]) == (1, "synced")
        monkeypatch.setattr(runtime, "snapshot", fail_once(runtime.snapshot, MemoryError()))
        reloader._accept(Snapshot())
        while not worker()["failed_generation"]:
            await asyncio.sleep(0.01)
        assert (worker()["generation"], reloader.status()["state"]) == (1, "degraded")
        assert reloader.status()["outdated_workers"] == [0]
        while worker()["generation"] != 2:
            await asyncio.sleep(0.01)
        assert (worker()["failed_generation"], reloader.status()["state"]) == (0, "synced")
        assert not app._compiled.snapshot.caller_keys
        app.recorder.close()
        await limiter.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
