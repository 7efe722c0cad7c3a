"""Flags for calls to the server that are no requests to the model: cache reset and profiler."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group, seconds

__all__ = ["SERVER_CALLS"]


def _path(name: str, help_: str, target: str, default: str) -> Flag:
    return Flag(name, "str", help_, target=f"server_calls.{target}", metavar="/PATH", default=default, url=True)


def _timeout(name: str, help_: str, target: str, default: str) -> Flag:
    return seconds(name, help_, f"server_calls.{target}", default=default)


SERVER_CALLS = Group(
    "Cache reset and profiler of the server",
    (
        Flag(
            "--reset-kv-cache",
            "bool",
            "Before each run, clear the prefix cache of each server with a POST request.",
            target="server_calls.reset_cache",
        ),
        _path("--reset-kv-cache-path", "Path of this request.", "reset_path", "/reset_prefix_cache"),
        _timeout("--reset-kv-cache-timeout-seconds", "Time limit of this request.", "reset_timeout_s", "30"),
        Flag(
            "--server-profiler",
            "bool",
            "Start the profiler of each server before the profiling phase, and stop it afterwards, with POST requests.",
            target="server_calls.profiler",
        ),
        _path("--server-profiler-start-path", "Path of the request that starts it.", "start_path", "/start_profile"),
        _path("--server-profiler-stop-path", "Path of the request that stops it.", "stop_path", "/stop_profile"),
        _timeout(
            "--server-profiler-timeout-seconds",
            "Time limit of each of these requests. A profiler may write its file before it answers.",
            "profiler_timeout_s",
            "300",
        ),
    ),
)
