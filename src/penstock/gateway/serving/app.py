"""Dispatch of requests by path, and the state that all requests of a worker share."""

from __future__ import annotations

import asyncio
import os
from time import monotonic, perf_counter, time

import orjson

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.ending import shutting_down
from penstock.gateway.guardrails.offload import pending_inspections
from penstock.gateway.inbound.auth import authenticate, contains_api_key
from penstock.gateway.inbound.connection import CallerRequest, head_error
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.memory import MemoryBudget
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.outbound.response import CallerResponse, CommonHeaders
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import JSON
from penstock.gateway.request import GatewayRequest
from penstock.gateway.resources.snapshot import allows
from penstock.gateway.routes import BY_PATH, MODELS
from penstock.gateway.serving.runtime import Runtime, WorkerState
from penstock.gateway.storage.response_ids import ResponseIds
from penstock.gateway.upstream.compiled_snapshot import CompiledSnapshot
from penstock.gateway.upstream.cooldowns import Cooldowns, shared_words
from penstock.gateway.upstream.hosts import Hosts
from penstock.gateway.upstream.routing import RoundRobin

TICK_S = 0.1
RESET_CHECK_TICKS, SWEEP_TICKS = 10, 50
LOAD_RETRY_S = 1.0
"""Time between attempts to load resources after a failure."""
RECEIVE_S = 120.0
"""How long the body of a request may take to arrive."""
_MAX_ID_CHARS = 256
_ALIVE, _READY = "/livez", "/readyz"
_TEXT = ("content-type", "text/plain; charset=utf-8")


class App:
    """What a worker serves. `handle` is called for every request."""

    def __init__(self, runtime: Runtime, worker: int, limiter: Limiter, recorder: Recorder) -> None:
        config = runtime.config
        self.runtime = runtime
        self.config = config
        self.worker = worker
        self.limiter = limiter
        self.recorder = recorder
        self.max_body = config.listen.max_body_bytes
        self.memory = MemoryBudget(config.listen.max_held_bytes)
        self.abandoned_streams = 0
        self.trusted = config.listen.trusted_proxies
        self.default_output = config.limits.default_output_tokens
        self.common_headers = CommonHeaders(config.listen.cors_origins)
        self.cooldowns = Cooldowns(shared_words(os.path.join(runtime.folder, "cooldowns")))
        self.round_robin = RoundRobin()
        self.response_ids = ResponseIds(
            os.path.join(config.ledger.spool, "response-ids"), config.responses.id_ttl_s, config.responses.id_url
        )
        self.requests: dict[GatewayRequest, None] = {}
        self.loop: asyncio.AbstractEventLoop
        self.hosts: Hosts
        self._compiled: CompiledSnapshot
        self._generation = b""
        """The generation that was loaded last, or whose load was tried last."""
        self._failed_generation = 0
        self._next_load = 0.0
        self._ticks = 0
        self._next_tick = 0.0
        self._cut_off = False
        self.replaced = False
        """True once another process reports in the slot of this worker."""
        # Ids are unique over all workers and restarts, and cheap: a random prefix and a counter.
        self._id_prefix = f"req_{os.urandom(9).hex()}"
        self._ids = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._next_tick = monotonic()
        self.hosts = Hosts(loop)
        self._load_snapshot()
        self.recorder.start(loop)
        self._tick()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, caller_request: CallerRequest) -> bool:
        """Answer a request. Return whether its connection can carry another one."""
        dialect = BY_PATH.get(caller_request.target) or BY_PATH.get(caller_request.path)
        headers = caller_request.headers
        if dialect is None or caller_request.method != "POST" or head_error(headers) is not None:
            return self._serve_locally(caller_request)
        self._ids += 1
        ledger_id = request_id = f"{self._id_prefix}{self._ids:07x}"
        if self.runtime.state.generation_bytes() != self._generation:
            self._load_snapshot()
        caller_id = headers.get("x-penstock-request-id")
        if (
            caller_id is not None
            and _is_valid_id(caller_id)
            and not contains_api_key(caller_id, headers, self._compiled.snapshot)
        ):
            # Callers may reuse an id, but the ledger needs unique keys.
            request_id, ledger_id = caller_id, f"{caller_id}~{ledger_id[4:]}"
        request = GatewayRequest(self, self._compiled, caller_request, dialect, request_id, ledger_id)
        metrics = self.recorder.metrics
        metrics.started()
        self.requests[request] = None
        if self._cut_off:
            request.end()
        try:
            keep_alive = await request.run()
        finally:
            del self.requests[request]
            metrics.ended()
        await caller_request.connection.drain()
        return keep_alive

    def _serve_locally(self, request: CallerRequest) -> bool:
        """Answer requests that need no upstream. They are logged and counted in the metrics, but not in the ledger."""
        began = perf_counter()
        path = request.path
        self._ids += 1
        entry = Entry(request_id=f"{self._id_prefix}{self._ids:07x}", at=time(), route="other", worker=self.worker)
        entry.client = request.connection.address
        kind = _TEXT if path == _ALIVE else JSON
        extra: tuple[tuple[str, str], ...] = ()
        try:
            if request.method == "OPTIONS" and self.common_headers.cross_origin:
                status, body, extra = 200, b"", self._preflight(request, path)
            else:
                status, body = 200, self._local_response(request, path, entry)
        except Refusal as refusal:
            status, body = refusal.status, refusal.body()
            entry.error = refusal.type
            extra = refusal.headers
        entry.status = status
        entry.phases_ms = {"total": (perf_counter() - began) * 1000}
        response = CallerResponse(self.common_headers, request, Dialect.id_headers, entry.request_id)
        response.send(status, body, entry.phases_ms, kind, *extra)
        if path not in (_ALIVE, _READY):
            self.recorder.record_local(entry)
        return response.keeps_alive

    def _preflight(self, request: CallerRequest, path: str) -> tuple[tuple[str, str], ...]:
        """Return the headers for a browser that asks what a page of another origin may send."""
        methods = "POST" if path in BY_PATH else "GET, HEAD"
        requested = request.headers.get("access-control-request-headers")
        return self.common_headers.cross_origin.preflight(requested, methods)

    def _local_response(self, request: CallerRequest, path: str, entry: Entry) -> bytes:
        error = head_error(request.headers)
        if error is not None:
            raise error
        method = request.method
        if path == _ALIVE:
            return b"ok"
        if path == _READY:
            if self.runtime.state.draining:
                raise shutting_down()
            return b'{"status":"ok"}'
        if path == MODELS:
            entry.route = "models"
            if method not in ("GET", "HEAD"):
                raise _method_not_allowed(method, "GET, HEAD")
            return self._models(request, entry)
        if path in BY_PATH:
            entry.route = BY_PATH[path].name
            raise _method_not_allowed(method, "POST")
        raise Refusal(404, "not_found", f"Unknown path; the gateway serves {', '.join(BY_PATH)} and {MODELS}.")

    def _models(self, request: CallerRequest, entry: Entry) -> bytes:
        if self.runtime.state.generation_bytes() != self._generation:
            self._load_snapshot()
        snapshot = self._compiled.snapshot
        key = authenticate(request.headers, snapshot, entry)
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

    # -- background work ----------------------------------------------------------------------------------------------

    def _load_snapshot(self) -> None:
        """Use the newest resources for new requests. If they cannot be loaded, keep the previous ones and retry later."""
        self._generation = self.runtime.state.generation_bytes()
        try:
            generation, snapshot = self.runtime.snapshot()
            compiled = CompiledSnapshot(snapshot, generation, self.config, self.hosts)
        except Exception as error:
            if not hasattr(self, "_compiled"):
                raise
            self._defer_load(error)
            return
        if self._failed_generation:
            self._failed_generation = 0
            log_operator_message(f"worker {self.worker} has loaded the new resources (generation {generation})")
        self.hosts.keep(compiled.host_keys())
        self.recorder.metrics.add_known_names(snapshot)
        self._compiled = compiled
        self._report()

    def _defer_load(self, error: Exception) -> None:
        """Report that the new resources cannot be loaded, and schedule the next try."""
        generation = self.runtime.state.generation
        if generation != self._failed_generation:
            self._failed_generation = generation
            # The main process has validated the resources, so this is a bug, or memory is short.
            log_operator_message(
                f"internal error: worker {self.worker} cannot load the new resources (generation {generation}) and "
                f"retries: {type(error).__name__}",
                "error",
            )
        self._next_load = monotonic() + LOAD_RETRY_S
        self._report()

    def _tick(self) -> None:
        self.loop.call_later(TICK_S, self._tick)
        now = monotonic()
        metrics = self.recorder.metrics
        metrics.loop_lag_s = max(metrics.loop_lag_s, now - self._next_tick)
        self._next_tick = now + TICK_S
        if self.runtime.state.generation_bytes() != self._generation or (
            self._failed_generation and now >= self._next_load
        ):
            self._load_snapshot()
        self._ticks += 1
        self._report()
        for request in list(self.requests):
            try:
                request.tick(now, RECEIVE_S)
            except Exception as error:  # the other requests must still be checked
                log_operator_message(f"internal error in request {request.request_id}: {type(error).__name__}", "error")
        if self._ticks % RESET_CHECK_TICKS == 0:
            self.hosts.check_resets()
            self.response_ids.tick(time())
        if self._ticks % SWEEP_TICKS == 0:
            self.hosts.sweep()
        self._report_gauges()

    def _report(self) -> None:
        if self.replaced:
            return
        state = WorkerState(
            os.getpid(),
            self._compiled.generation,
            len(self.requests),
            self.hosts.open,
            self._failed_generation,
            self._ticks,
        )
        self.runtime.state.write_slot(self.worker, state)

    def _report_gauges(self) -> None:
        metrics, limiter = self.recorder.metrics, self.limiter
        metrics.gauges["inspection_queue"] = pending_inspections()
        metrics.gauges["limits_degraded"] = float(limiter.degraded)
        metrics.cooldowns_s = self.cooldowns.seconds_left(perf_counter())
        metrics.totals["limits_failures_total"] = limiter.failures
        metrics.totals["limits_evicted_windows_total"] = limiter.evicted

    def cut_off(self) -> None:
        """End all running requests, and those that still arrive: the drain time is over."""
        self._cut_off = True
        for request in list(self.requests):
            request.end()


def _is_valid_id(text: str) -> bool:
    return 0 < len(text) <= _MAX_ID_CHARS and text.isascii() and text.isprintable() and " " not in text


def _method_not_allowed(method: str, allowed: str) -> Refusal:
    message = f"The method {method[:20]} is not allowed for this path."
    return Refusal(405, "invalid_request_error", message, headers=(("allow", allowed),))
