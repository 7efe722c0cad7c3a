"""The calls that clear caches and run profilers, without a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.errors import UserError
from penstock.runs.server_calls import ServerCalls
from penstock.secrets import Secret
from penstock.settings.schema import EndpointSettings, ServerCallSettings
from penstock.workers.job import targets
from support.programs import Capture
from support.runs import make_settings
from support.worker_harness import make_phase


@pytest.fixture
def servers() -> Iterator[tuple[Capture, Capture]]:
    pair = (Capture(), Capture())
    yield pair
    for server in pair:
        server.stop()


def calls(urls: tuple[str, ...], **settings: Any) -> tuple[ServerCalls, list[str]]:
    endpoint = EndpointSettings(urls=urls, api_key=Secret("key"))
    made = msgspec.structs.replace(make_settings(), endpoint=endpoint, server_calls=ServerCallSettings(**settings))
    prepared = SimpleNamespace(targets=targets(endpoint, "/v1/chat/completions"), companion_notes=[])
    return ServerCalls(made, prepared), prepared.companion_notes  # type: ignore[arg-type]


def test_caches_are_cleared_before_each_run_and_profilers_run_during_profiling(
    servers: tuple[Capture, Capture],
) -> None:
    urls = (*(server.url for server in servers), servers[0].url + "/v1")
    companion, notes = calls(urls, reset_cache=True, profiler=True)
    for point in (0, 1):
        for kind in ("warmup", "profiling"):
            phase = make_phase(kind=kind, point=point)
            companion.before_phase(phase)
            companion.after_phase(phase)
    companion.finish()
    for server in servers:
        assert [path for path, _, _ in server.requests] == 2 * [
            "/reset_prefix_cache",
            "/start_profile",
            "/stop_profile",
        ]
        for _, headers, body in server.requests:
            assert headers["authorization"] == ["Bearer key"]
            assert (headers["content-length"], body) == (["0"], b"")
    assert notes == []


def test_profiler_of_a_run_that_failed_is_stopped(servers: tuple[Capture, Capture]) -> None:
    companion, _ = calls((servers[0].url,), profiler=True, start_path="/go", stop_path="/halt")
    companion.before_phase(make_phase())
    companion.finish()
    companion.finish()
    assert [path for path, _, _ in servers[0].requests] == ["/go", "/halt"]


def test_server_that_does_not_answer_is_a_sentence() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        companion, notes = calls((url,), reset_cache=True)
        with pytest.raises(
            UserError, match=f"--reset-kv-cache failed: {url}/reset_prefix_cache did not answer: Nothing"
        ):
            companion.before_phase(make_phase())
        companion, notes = calls((url,), profiler=True)
        with pytest.raises(
            UserError, match=r"--server-profiler failed: .* --server-profiler-start-path names another path"
        ):
            companion.before_phase(make_phase())
        companion.finish()
    assert len(notes) == 1
    assert notes[0].startswith(f"The profiler of the server was not stopped: {url}/stop_profile did not answer: ")
