"""One request, from its arrival to its ledger entry. The order of the steps is part of the contract:

    size ─▶ key ─▶ body ─▶ alias, permission ─▶ provider ─▶ input guardrails ─▶ limits ─▶ upstream ─▶ output guardrails

Each step can end the request with a `Refusal`; the last two are in `relay.attempt_loop`. Exactly one entry is written,
however the request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from time import time
from typing import TYPE_CHECKING, Any

from penstock.gateway.auth import authenticate, authorize, client_ip, recorded_model_name
from penstock.gateway.guardrails import DuplicateKeyError, Guards
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.accounting import Accounting
from penstock.gateway.relay.attempt_loop import AttemptLoop, CallerGoneError
from penstock.gateway.relay.body import Request, read_body
from penstock.gateway.relay.caller_response import CallerResponse
from penstock.gateway.relay.replies import JSON, blocked, body_timeout, incomplete_body, shutting_down, too_large
from penstock.gateway.relay.token_estimate import estimate_tokens
from penstock.gateway.routes import Route
from penstock.gateway.rsgi import HTTPProtocol, Scope
from penstock.gateway.serving.compiled_snapshot import CompiledSnapshot

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["GatewayRequest"]

EARLY_BYTES = 1 << 16
"""A body up to this size is requested from the server's thread before the key is looked up, which hides the latency
between the threads. A larger one is only read for a valid key."""


class GatewayRequest:
    """A request to one of the routes that lead to an upstream."""

    __slots__ = (
        "_app",
        "_attempt_loop",
        "_body_future",
        "_compiled",
        "_protocol",
        "_reservation",
        "_response",
        "_scope",
        "_shutting_down",
        "accounting",
        "client",
        "request_id",
        "route",
    )

    def __init__(
        self,
        app: App,
        compiled: CompiledSnapshot,
        scope: Scope,
        protocol: HTTPProtocol,
        route: Route,
        request_id: str,
        ledger_id: str,
    ) -> None:
        self.accounting = Accounting(ledger_id, route, app.worker)
        self._app = app
        self._compiled = compiled
        self._scope = scope
        self._protocol = protocol
        self._response = CallerResponse(app, scope.client, protocol, request_id, self.accounting)
        self.client = scope.client
        self.route = route
        self.request_id = request_id
        self._shutting_down = False
        """True once the drain time is over."""
        self._body_future: Any = None
        self._attempt_loop: AttemptLoop | None = None
        self._reservation: Reservation | None = None

    async def run(self) -> None:
        response = self._response
        try:
            await self._serve()
        except Refusal as refusal:
            response.refuse(refusal)
        except CallerGoneError:
            self._record_disconnect()
        except asyncio.CancelledError:
            response.refuse(shutting_down() if self._shutting_down else body_timeout())
        except Exception as error:
            if type(error).__name__ == "RSGIProtocolClosed":
                self._record_disconnect()
            else:
                self._report_internal_error(error)
        finally:
            response.close()
            self._app.recorder.record(self.accounting.close())
            await self._settle()

    async def _serve(self) -> None:
        app, compiled, accounting = self._app, self._compiled, self.accounting
        entry = accounting.entry
        headers = self._scope.headers
        length = headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > app.max_body):
            raise too_large(app.max_body)
        if length is not None and int(length) <= EARLY_BYTES:
            self._body_future = self._protocol()
        peer = self._scope.client
        if app.trusted:
            entry.client = client_ip(peer, ",".join(headers.get_all("x-forwarded-for")), app.trusted) or peer
        else:
            entry.client = peer.rpartition(":")[0].strip("[]")
        key = authenticate(headers, compiled.snapshot, entry)
        if self._shutting_down:
            raise shutting_down()
        accounting.enter("receive")
        data = await self._receive(length)
        accounting.enter("auth")
        request = read_body(data, chat=self.route == "chat")
        entry.stream = request.stream
        entry.model = recorded_model_name(request.model, headers, compiled.snapshot)
        model = authorize(key, request.model, compiled.snapshot, entry.client)
        entry.provider = model.provider
        targets = compiled.targets(model, self.route)
        guards = compiled.guards_for(key, model)
        if guards is not None and guards.has_input:
            accounting.enter("guardrail_in")
            request = await self._inspect(guards, request)
        accounting.enter("quota")
        output = request.max_output if request.max_output is not None else app.default_output
        tokens = estimate_tokens(len(request.data)) + (0 if self.route == "embeddings" else output)
        self._reservation = await app.limiter.admit(key, model, compiled.snapshot.policies, tokens, time())
        self._response.set_headers(self._reservation.headers)
        app.recorder.live.begin(entry, estimate_tokens(len(request.data)))
        accounting.enter("upstream")
        if self._shutting_down:
            raise shutting_down()
        self._attempt_loop = AttemptLoop(app, compiled, self._response, self.route, model, request, tokens, guards)
        await self._attempt_loop.run(targets)

    async def _receive(self, length: str | None) -> bytes:
        if length is not None:
            if self._body_future is None:
                self._body_future = self._protocol()
            data: bytes = await self._body_future
        else:
            pieces: list[bytes] = []
            size = 0
            body = aiter(self._protocol)
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    self._body_future = anext(body)
                    pieces.append(await self._body_future)
                    size += len(pieces[-1])
                    if size > self._app.max_body:
                        raise too_large(self._app.max_body)
            data = b"".join(pieces)
            # Every body ends with an empty piece. One that breaks off has another empty piece before it.
            if pieces[-2:] == [b"", b""] and self._app.client_sockets.is_closed(self.client):
                raise CallerGoneError
        self._body_future = None
        self.accounting.entry.bytes_in = len(data)
        return data

    async def _inspect(self, guards: Guards, request: Request) -> Request:
        data = request.data
        try:
            inspection = await guards.request(data)
        except DuplicateKeyError:
            raise Refusal(400, "invalid_request_error", "An object in the request body has a duplicate key.") from None
        except ValueError:
            raise Refusal(400, "invalid_request_error", "The request body is not valid JSON.") from None
        self.accounting.record_inspection(inspection)
        if inspection.blocked_by is not None:
            raise blocked("request", inspection.blocked_by, timed_out=inspection.timed_out)
        return request if inspection.body is data else read_body(inspection.body, chat=False)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        if self._attempt_loop is not None:
            await self._attempt_loop.close()
        if self._reservation is not None and not self._reservation.settled:
            await self._app.limiter.settle(self._reservation, self.accounting.tokens, time())

    def _report_internal_error(self, error: BaseException) -> None:
        """Send a bare 500, and log where the exception was raised. Its message is not logged: it may quote the request."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log_operator_message(
            f"internal error in request {self.request_id}: {type(error).__name__} in {frame.name} "
            f"({frame.filename}:{frame.lineno})",
            "error",
        )
        refusal = Refusal(500, "internal_error", "The gateway failed with an internal error; its log has the details.")
        if self._response.stream is None:
            self._response.refuse(refusal)
            return
        self.accounting.record_failure(500, refusal.type, "cut")
        if self._attempt_loop is not None:
            self._attempt_loop.send_error_event(refusal.type)

    def _record_disconnect(self) -> None:
        if self._attempt_loop is None:
            # The caller closed its sending side within the body. It may still read, and the server would send a 500.
            refusal = incomplete_body()
            self._response.send(refusal.status, JSON, refusal.body())
        self.accounting.record_failure(499, "client_disconnected", "disconnected")

    # -- timers -------------------------------------------------------------------------------------------------------

    def tick(self, now: float, receive_s: float) -> None:
        """Check timeouts. Called ten times a second."""
        if self._attempt_loop is not None:
            self._attempt_loop.tick(now)
        elif self._body_future is not None and self.accounting.elapsed_s > receive_s:
            self._body_future.cancel()

    def end(self) -> None:
        """End the request: the drain time is over."""
        self._shutting_down = True
        if self._attempt_loop is not None:
            self._attempt_loop.end()
        elif self._body_future is not None:
            self._body_future.cancel()
