"""Waiting for a server that is still starting, with requests of its own before the run (`--wait-for-model-timeout`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic
from urllib.parse import SplitResult, urlsplit

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import Endpoint
from penstock.errors import UserError
from penstock.secrets import redact_url
from penstock.settings.schema import Settings
from penstock.wire.one_shot import RequestFailed, Response, send_blocking
from penstock.workers.job import fixed_headers, join, resolve_origin

_PROBE_S = 30.0
"""Time for the reply to one check. A server that has just started may compile kernels for its first request."""
_POLL_S = 0.1

Progress = Callable[[float, float, str], None]
"""Called with the seconds waited, the seconds to wait, and why the server is not ready."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Readiness:
    """Checks the URLs of a run until each of them is ready."""

    def __init__(self, settings: Settings, endpoint: Endpoint) -> None:
        """Raise UserError if the endpoint cannot build the request that has to be answered."""
        self._wait = settings.readiness
        self._models = settings.models
        self._endpoint = endpoint
        self._settings = msgspec.structs.replace(settings.endpoint, streaming=False, per_chunk_usage=False)
        self._bodies = [] if self._wait.mode == "models" else list(self._probe_bodies())
        self._stopped = threading.Event()
        self._reason = ""
        self._error: BaseException | None = None

    def _probe_bodies(self) -> Iterator[bytes]:
        """Yield a request for one token of each model."""
        turn = Turn(texts=("Hello",), output_tokens=1)
        try:
            for model in self._models:
                yield self._endpoint.encode(self._endpoint.build(turn, model, self._settings))
        except UserError:
            raise UserError(
                f"--wait-for-model-mode {self._wait.mode} sends a request of its own, which --endpoint-type "
                f"{self._settings.type} cannot build; use --wait-for-model-mode models."
            ) from None

    def wait(self, on_progress: Progress) -> None:
        """Return when all URLs are ready; raise UserError when the time is over.

        The checks run in a thread of their own, because the caller may have an event loop, and so that waiting can be shown
        and interrupted during a check."""
        began = monotonic()
        thread = threading.Thread(target=self._run, args=(began + self._wait.timeout_s,), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
                if self._reason:
                    on_progress(monotonic() - began, self._wait.timeout_s, self._reason)
        finally:
            self._stopped.set()
        if self._error is not None:
            raise self._error

    def _run(self, deadline: float) -> None:
        try:
            for url in self._settings.urls:
                self._wait_for(url, deadline)
        except BaseException as error:
            self._error = error

    def _wait_for(self, url: str, deadline: float) -> None:
        while (reason := self._check(urlsplit(url), deadline)) is not None:
            self._reason = reason
            left = deadline - monotonic()
            if left <= 0:
                raise UserError(
                    f"{redact_url(url)} was not ready within {self._wait.timeout_s:g} s (--wait-for-model-timeout): {reason}"
                )
            if self._stopped.wait(min(left, self._wait.interval_s)):
                return

    def _check(self, url: SplitResult, deadline: float) -> str | None:
        """Return why the server at a URL is not ready; None if it is."""
        timeout = min(_PROBE_S, max(1.0, deadline - monotonic()))
        try:
            if self._wait.mode != "inference" and (reason := self._check_models(url, timeout)) is not None:
                return reason
            target = _target(url, join(url.path, self._endpoint.request_path(self._settings)))
            for body in self._bodies:
                response = self._send(url, self._endpoint.declaration.method, target, timeout, body)
                if response.status >= 500:
                    return f"it answers a request with status {response.status}."
        except RequestFailed as error:
            return str(error)
        return None

    def _check_models(self, url: SplitResult, timeout: float) -> str | None:
        base = url.path.rstrip("/").removesuffix(self._endpoint.path)
        response = self._send(url, "GET", _target(url, join(base, "/v1/models")), timeout)
        if response.status == 404:  # not every server lists its models
            response = self._send(url, "GET", _target(url, base or "/"), timeout)
            return None if response.status < 500 else f"it answers with status {response.status}."
        if response.status != 200:
            return f"it answers GET /v1/models with status {response.status}."
        try:
            listed = [model.id for model in msgspec.json.decode(response.body, type=_Models).data]
        except msgspec.MsgspecError:
            return "it answers GET /v1/models with something that is not a list of models."
        missing = [model for model in self._models if model not in listed]
        return f"it lists {', '.join(listed) or 'no model'}, and not {missing[0]}." if missing else None

    def _send(self, url: SplitResult, method: str, target: str, timeout: float, body: bytes = b"") -> Response:
        # The address is resolved each time: that of a host with several depends on which of them accepts connections.
        origin, _ = resolve_origin(self._settings, url)
        headers = _without_body(fixed_headers(self._settings, self._endpoint.declaration), body)
        return send_blocking(origin, method, target, timeout_s=timeout, headers=headers, body=body)


def _without_body(headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    """Return the headers, without Content-Type if there is no body."""
    return headers if body else [(name, value) for name, value in headers if name.lower() != "content-type"]


def _target(url: SplitResult, path: str) -> str:
    return f"{path}?{url.query}" if url.query else path
