"""`--reset-kv-cache` and `--server-profiler` against the mock, whose log tells the order of the calls."""

from __future__ import annotations

import json
from collections.abc import Callable

from support.programs import MockServer, Program

CHAT = "/v1/chat/completions"


def test_calls_come_before_and_after_the_phases(mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(prefix_cache=1000, block_size=1)
    flags = ("--request-count", 3, "--warmup-request-count", 2, "--reset-kv-cache", "--server-profiler")
    for _ in range(2):
        run = program.profile(server.url, *flags)
        assert run.status == 0, run
    server.stop()
    entries = sorted(map(json.loads, server.log.read_text().splitlines()), key=lambda entry: entry["arrived_ns"])
    one_run = ["/reset_prefix_cache", CHAT, CHAT, "/start_profile", CHAT, CHAT, CHAT, "/stop_profile"]
    assert [entry["path"] for entry in entries] == one_run + one_run
    cached = [entry["cached_tokens"] for entry in entries if entry["path"] == CHAT]
    assert cached[0] == cached[5] == 0
    assert all(cached[n] > 0 for n in range(10) if n not in (0, 5))  # the prompts begin alike


def test_call_that_fails_before_the_run_ends_it_and_after_the_run_is_a_note(program: Program) -> None:
    refused = program.profile("mock://", "--request-count", 1, "--reset-kv-cache", "--reset-kv-cache-path", "/nothing")
    assert (refused.status, refused.folder.exists()) == (2, False)
    assert "/nothing answered with status 404. --reset-kv-cache-path names another path." in refused.err
    unstopped = program.profile(
        "mock://", "--request-count", 1, "--server-profiler", "--server-profiler-stop-path", "/nothing"
    )
    assert unstopped.status == 0
    assert "Note: The profiler of the server was not stopped: http" in unstopped.err
    assert unstopped.summary["request_count"]["avg"] == 1
