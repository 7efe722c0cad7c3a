"""The companion that resets the servers' prefix caches before a run, and profiles the servers during the profiling phase."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.endpoints.base import endpoint_named
from penstock.errors import UserError
from penstock.runs.companion import Companion
from penstock.runs.prepare import Prepared
from penstock.schedule.phase import Phase
from penstock.settings.schema import Settings
from penstock.wire.connection import Origin
from penstock.wire.one_shot import RequestFailed, send_blocking
from penstock.workers.job import fixed_headers


class _Server(NamedTuple):
    base: str
    """Scheme and host, without credentials."""
    origin: Origin


class ServerCalls(Companion):
    """The calls of --reset-kv-cache and --server-profiler."""

    def __init__(self, settings: Settings, prepared: Prepared) -> None:
        self._calls = settings.server_calls
        declaration = endpoint_named(settings.endpoint.type, settings.endpoint).declaration
        headers = fixed_headers(settings.endpoint, declaration)
        self._headers = [(name, value) for name, value in headers if name.lower() not in ("content-type", "accept")]
        servers = {}
        for target in prepared.targets:
            parts = urlsplit(target.url)
            servers[parts.netloc] = _Server(f"{parts.scheme}://{parts.netloc}", target.origin)
        self._servers = list(servers.values())
        self._notes = prepared.companion_notes
        self._reset_point: int | None = None
        """The point of the experiment before which the caches were cleared."""
        self._profiling = False

    def before_phase(self, phase: Phase) -> None:
        calls = self._calls
        if calls.reset_cache and phase.point != self._reset_point:
            self._reset_point = phase.point
            self._check(calls.reset_path, calls.reset_timeout_s, "--reset-kv-cache", "--reset-kv-cache-path")
        if calls.profiler and phase.kind == "profiling":
            self._profiling = True
            self._check(calls.start_path, calls.profiler_timeout_s, "--server-profiler", "--server-profiler-start-path")

    def after_phase(self, phase: Phase) -> None:
        if phase.kind == "profiling":
            self._stop_profiler()

    def finish(self) -> str | None:
        self._stop_profiler()  # of a run that failed
        return None

    def _stop_profiler(self) -> None:
        """Stop the profilers. The requests have been measured, so a failure is only a note."""
        if self._profiling:
            self._profiling = False
            for url, error in self._post(self._calls.stop_path, self._calls.profiler_timeout_s):
                self._notes.append(f"The profiler of the server was not stopped: {url} {error}")

    def _check(self, path: str, timeout_s: float, flag: str, path_flag: str) -> None:
        for url, error in self._post(path, timeout_s):
            raise UserError(f"{flag} failed: {url} {error} {path_flag} names another path.")

    def _post(self, path: str, timeout_s: float) -> list[tuple[str, str]]:
        """Send a request to each server; return the URLs that failed with the reasons."""
        failed = []
        for server in self._servers:
            error = _in_thread(lambda server=server: self._error(server.origin, path, timeout_s))  # type: ignore[misc]
            if error is not None:
                failed.append((f"{server.base}{path}", error))
        return failed

    def _error(self, origin: Origin, path: str, timeout_s: float) -> str | None:
        try:
            response = send_blocking(origin, "POST", path, timeout_s=timeout_s, headers=self._headers)
        except RequestFailed as error:
            return f"did not answer: {error}"
        return None if response.status < 400 else f"answered with status {response.status}."


def _in_thread(call: Callable[[], str | None]) -> str | None:
    """Call a function in a thread of its own, because this one may have a running event loop."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()
