"""The proxy as Granian calls it: which path is what, and what all requests of a worker share."""

from __future__ import annotations

import asyncio
import os
from time import monotonic, perf_counter, time

import orjson

from penstock import __version__
from penstock.gateway.auth import allows, authenticate, tells_key
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.observe.timing import server_timing
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.hosts import Hosts
from penstock.gateway.relay.replies import JSON, shutting_down
from penstock.gateway.relay.request import GatewayRequest
from penstock.gateway.relay.response_stream import Peers
from penstock.gateway.relay.routing import Cooldowns, Turns
from penstock.gateway.routes import BY_PATH, MODELS
from penstock.gateway.rsgi import HTTPProtocol, Scope
from penstock.gateway.serving.compiled_snapshot import CompiledSnapshot
from penstock.gateway.serving.runtime import Runtime, WorkerState

__all__ = ["App"]

TICK_S = 0.1
LOOK_TICKS, SWEEP_TICKS = 10, 50
RECEIVE_S = 120.0
"""How long a request's body may take to arrive."""
_MAX_ID = 256
_ALIVE, _READY = "/livez", "/readyz"
_TEXT = ("content-type", "text/plain; charset=utf-8")


class App:
    def __init__(self, runtime: Runtime, worker: int, limiter: Limiter, recorder: Recorder) -> None:
        config = runtime.config
        self.runtime = runtime
        self.config = config
        self.worker = worker
        self.limiter = limiter
        self.recorder = recorder
        self.max_body = config.listen.max_body_bytes
        self.trusted = config.listen.trusted_proxies
        self.default_output = config.limits.default_output_tokens
        self.standing_headers = [("server", f"Penstock/{__version__}")]
        self.cooldowns = Cooldowns()
        self.turns = Turns()
        self.peers = Peers()
        self.calls: dict[GatewayRequest, None] = {}
        self.loop: asyncio.AbstractEventLoop
        self.hosts: Hosts
        self._live: CompiledSnapshot
        self._generation = b""
        self._ticks = 0
        self._cut_off = False
        # Unique in all workers of all times, and cheap: a random head and a count.
        self._id_head = f"req_{os.urandom(9).hex()}"
        self._ids = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.hosts = Hosts(loop)
        self._take_snapshot()
        self.recorder.start(loop)
        self._tick()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        route = BY_PATH.get(scope.path)
        if route is None or scope.method != "POST":
            self._other(scope, protocol)
            return
        self._ids += 1
        key = request_id = f"{self._id_head}{self._ids:07x}"
        if self.runtime.board.generation_bytes() != self._generation:
            self._take_snapshot()
        given = scope.headers.get("x-penstock-request-id")
        if given is not None and _is_id(given) and not tells_key(given, scope.headers, self._live.snapshot):
            # Callers may use an id again, and the ledger takes each of its keys once.
            request_id, key = given, f"{given}~{key[4:]}"
        call = GatewayRequest(self, self._live, scope, protocol, route, request_id, key)
        metrics = self.recorder.metrics
        metrics.started()
        self.calls[call] = None
        if self._cut_off:
            call.end()
        try:
            await call.run()
        finally:
            del self.calls[call]
            metrics.ended()

    def _other(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Everything that calls no upstream. Such requests are logged and counted, but nothing was used by them."""
        began = perf_counter()
        path = scope.path
        self._ids += 1
        entry = Entry(request_id=f"{self._id_head}{self._ids:07x}", at=time(), route="other", worker=self.worker)
        entry.client = scope.client.rpartition(":")[0].strip("[]")
        kind = _TEXT if path == _ALIVE else JSON
        more: tuple[tuple[str, str], ...] = ()
        try:
            status, body = 200, self._answer(scope, entry)
        except Refusal as refusal:
            status, body = refusal.status, refusal.body()
            entry.error = refusal.type
            more = refusal.headers
        headers = [kind, *self.standing_headers, ("x-penstock-request-id", entry.request_id), *more]
        entry.status = status
        entry.phases_ms = {"total": (perf_counter() - began) * 1000}
        headers.append(("server-timing", server_timing(entry.phases_ms)))
        protocol.response_bytes(status, headers, body)
        if path not in (_ALIVE, _READY):
            self.recorder.metrics.observe(entry)
            self.recorder.log.write(entry)

    def _answer(self, scope: Scope, entry: Entry) -> bytes:
        path, method = scope.path, scope.method
        if path == _ALIVE:
            return b"ok"
        if path == _READY:
            if self.runtime.board.draining:
                raise shutting_down()
            return b'{"status":"ok"}'
        if path == MODELS:
            entry.route = "models"
            if method not in ("GET", "HEAD"):
                raise _wrong_method(method, "GET, HEAD")
            return self._models(scope, entry)
        if path in BY_PATH:
            entry.route = BY_PATH[path]
            raise _wrong_method(method, "POST")
        raise Refusal(404, "not_found", f"There is no such path here; there are {', '.join(BY_PATH)} and {MODELS}.")

    def _models(self, scope: Scope, entry: Entry) -> bytes:
        if self.runtime.board.generation_bytes() != self._generation:
            self._take_snapshot()
        snapshot = self._live.snapshot
        key = authenticate(scope.headers, snapshot, entry)
        models = [
            {
                "id": name,
                "object": "model",
                "created": int(snapshot.loaded_at),
                "owned_by": model.provider or "penstock",
            }
            for name, model in sorted(snapshot.models.items())
            if allows(key.allowed_models, name)
        ]
        return orjson.dumps({"object": "list", "data": models})

    # -- what happens beside them -------------------------------------------------------------------------------------

    def _take_snapshot(self) -> None:
        """The newest resources, for the requests from now on."""
        self._generation = self.runtime.board.generation_bytes()
        try:
            generation, snapshot = self.runtime.snapshot()
            live = CompiledSnapshot(snapshot, generation, self.config, self.hosts)
        except Exception as error:
            if not hasattr(self, "_live"):
                raise
            # The main process has checked them, so this is a fault of ours; what served before serves on.
            log_operator_message(f"worker {self.worker} cannot take new resources: {type(error).__name__}")
            return
        self.hosts.keep(live.host_keys())
        self.recorder.metrics.add_known_names(snapshot)
        self._live = live
        self._report()

    def _tick(self) -> None:
        self.loop.call_later(TICK_S, self._tick)
        if self.runtime.board.generation_bytes() != self._generation:
            self._take_snapshot()
        self._report()
        now = monotonic()
        for call in list(self.calls):
            try:
                call.tick(now, RECEIVE_S)
            except Exception as error:  # the others must not miss their time for it
                log_operator_message(f"a fault in Penstock at {call.request_id}: {type(error).__name__}")
        self._ticks += 1
        if self._ticks % LOOK_TICKS == 0:
            self.hosts.check_resets()
        if self._ticks % SWEEP_TICKS == 0:
            self.hosts.sweep()
        self._report_limits()

    def _report(self) -> None:
        state = WorkerState(os.getpid(), self._live.generation, len(self.calls), self.hosts.open)
        self.runtime.board.write_slot(self.worker, state)

    def _report_limits(self) -> None:
        metrics, limiter = self.recorder.metrics, self.limiter
        metrics.limits_degraded = limiter.degraded
        metrics.totals["limits_failures_total"] = limiter.failures
        metrics.totals["limits_evicted_windows_total"] = limiter.evicted

    def cut_off(self) -> None:
        """The time for draining is over: end what is left, and what still comes, with its records."""
        self._cut_off = True
        for call in list(self.calls):
            call.end()


def _is_id(given: str) -> bool:
    return 0 < len(given) <= _MAX_ID and given.isascii() and given.isprintable() and " " not in given


def _wrong_method(method: str, allowed: str) -> Refusal:
    message = f"The method {method[:20]} is not allowed here."
    return Refusal(405, "invalid_request_error", message, headers=(("allow", allowed),))
