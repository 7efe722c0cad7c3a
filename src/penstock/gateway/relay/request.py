"""One request, from its arrival to its record. The order of the steps is part of the contract:

    size ─▶ key ─▶ body ─▶ alias, permission ─▶ provider ─▶ input guardrails ─▶ limits ─▶ upstream ─▶ output guardrails

Each of them can end the request with a `Refusal`; the last two are in `relay.attempts`. However it ends, exactly one
entry is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from time import time
from typing import TYPE_CHECKING, Any

from penstock.gateway.auth import authenticate, authorize, client_ip, named_in_records
from penstock.gateway.guardrails import DuplicateKeyError, Guards
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.accounting import Accounting
from penstock.gateway.relay.attempt_loop import AttemptLoop, CallerGoneError
from penstock.gateway.relay.body import Request, read_body
from penstock.gateway.relay.caller_response import CallerResponse
from penstock.gateway.relay.replies import JSON, blocked, broken_off, late_body, shutting_down, too_large
from penstock.gateway.relay.token_estimate import estimate_tokens
from penstock.gateway.routes import Route
from penstock.gateway.rsgi import HTTPProtocol, Scope
from penstock.gateway.serving.compiled_snapshot import CompiledSnapshot

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["GatewayRequest"]

EARLY_BYTES = 1 << 16
"""A body up to this is fetched from the server's thread while the key is looked up, which hides the way between the
threads. A larger one of somebody without a key is not taken at all."""


class GatewayRequest:
    __slots__ = (
        "_app",
        "_arriving",
        "_attempts",
        "_caller",
        "_ended",
        "_live",
        "_protocol",
        "_reservation",
        "_scope",
        "books",
        "client",
        "request_id",
        "route",
    )

    def __init__(
        self,
        app: App,
        live: CompiledSnapshot,
        scope: Scope,
        protocol: HTTPProtocol,
        route: Route,
        request_id: str,
        ledger_id: str,
    ) -> None:
        self.books = Accounting(ledger_id, route, app.worker)
        self._app = app
        self._live = live
        self._scope = scope
        self._protocol = protocol
        self._caller = CallerResponse(app, scope.client, protocol, request_id, self.books)
        self.client = scope.client
        self.route = route
        self.request_id = request_id
        self._ended = False
        """By us: the drain's time is over."""
        self._arriving: Any = None
        self._attempts: AttemptLoop | None = None
        self._reservation: Reservation | None = None

    async def run(self) -> None:
        caller = self._caller
        try:
            await self._serve()
        except Refusal as refusal:
            caller.refuse(refusal)
        except CallerGoneError:
            self._went()
        except asyncio.CancelledError:
            caller.refuse(shutting_down() if self._ended else late_body())
        except Exception as error:
            if type(error).__name__ == "RSGIProtocolClosed":
                self._went()
            else:
                self._fault(error)
        finally:
            caller.close()
            self._app.recorder.record(self.books.close())
            await self._settle()

    async def _serve(self) -> None:
        app, live, books = self._app, self._live, self.books
        entry = books.entry
        headers = self._scope.headers
        length = headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > app.max_body):
            raise too_large(app.max_body)
        if length is not None and int(length) <= EARLY_BYTES:
            self._arriving = self._protocol()
        peer = self._scope.client
        if app.trusted:
            entry.client = client_ip(peer, ",".join(headers.get_all("x-forwarded-for")), app.trusted) or peer
        else:
            entry.client = peer.rpartition(":")[0].strip("[]")
        key = authenticate(headers, live.snapshot, entry)
        if self._ended:
            raise shutting_down()
        books.enter("receive")
        data = await self._receive(length)
        books.enter("auth")
        request = read_body(data, chat=self.route == "chat")
        entry.stream = request.stream
        entry.model = named_in_records(request.model, headers, live.snapshot)
        model = authorize(key, request.model, live.snapshot, entry.client)
        entry.provider = model.provider
        targets = live.targets(model, self.route)
        guards = live.guards
        if guards is not None and guards.has_input:
            books.enter("guardrail_in")
            request = await self._inspect(guards, request)
        books.enter("quota")
        output = request.max_output if request.max_output is not None else app.default_output
        tokens = estimate_tokens(len(request.data)) + (0 if self.route == "embeddings" else output)
        self._reservation = await app.limiter.admit(key, model, live.snapshot.policies, tokens, time())
        self._caller.keep(self._reservation.headers)
        books.enter("upstream")
        if self._ended:
            raise shutting_down()
        self._attempts = AttemptLoop(app, live, self._caller, self.route, model, request, tokens)
        await self._attempts.run(targets)

    async def _receive(self, length: str | None) -> bytes:
        if length is not None:
            if self._arriving is None:
                self._arriving = self._protocol()
            data: bytes = await self._arriving
        else:
            pieces: list[bytes] = []
            size = 0
            arriving = aiter(self._protocol)
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    self._arriving = anext(arriving)
                    pieces.append(await self._arriving)
                    size += len(pieces[-1])
                    if size > self._app.max_body:
                        raise too_large(self._app.max_body)
            data = b"".join(pieces)
            # An empty piece is an end. A body that breaks off has one of those before the one that every body has.
            if pieces[-2:] == [b"", b""] and self._app.peers.gone(self.client):
                raise CallerGoneError
        self._arriving = None
        self.books.entry.bytes_in = len(data)
        return data

    async def _inspect(self, guards: Guards, request: Request) -> Request:
        data = request.data
        try:
            found = await guards.run_inspection(len(data), lambda budgets: guards.request(data, budgets))
        except DuplicateKeyError:
            raise Refusal(
                400, "invalid_request_error", "A key stands twice in an object of the request body."
            ) from None
        except ValueError:
            raise Refusal(400, "invalid_request_error", "The request body is not valid JSON.") from None
        self.books.inspected(found)
        if found.blocked_by is not None:
            raise blocked("request", found.blocked_by, timed_out=found.timed_out)
        return request if found.body is data else read_body(found.body, chat=False)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        if self._attempts is not None:
            await self._attempts.close()
        if self._reservation is not None and not self._reservation.settled:
            await self._app.limiter.settle(self._reservation, self.books.tokens, time())

    def _fault(self, error: BaseException) -> None:
        """Ours: the caller gets a bare 500, the log gets the place. Messages of exceptions may quote what was sent."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        log_operator_message(
            f"a fault in Penstock ended request {self.request_id}: {type(error).__name__} in {place.name} "
            f"({place.filename}:{place.lineno})"
        )
        refusal = Refusal(500, "internal_error", "The gateway failed; its log says where.")
        if self._caller.outlet is None:
            self._caller.refuse(refusal)
            return
        self.books.failed(500, refusal.type, "cut")
        if self._attempts is not None:
            self._attempts.break_off(refusal.type)

    def _went(self) -> None:
        if self._attempts is None:
            # It closed its side within its body. It may still listen, and the server's own word would be a 500.
            refusal = broken_off()
            self._caller.answer(refusal.status, JSON, refusal.body())
        self.books.failed(499, "client_disconnected", "disconnected")

    # -- what happens meanwhile ---------------------------------------------------------------------------------------

    def tick(self, now: float, receive_s: float) -> None:
        """Called ten times a second, for what takes long."""
        if self._attempts is not None:
            self._attempts.tick(now)
        elif self._arriving is not None and self.books.elapsed_s > receive_s:
            self._arriving.cancel()

    def end(self) -> None:
        """The drain's time is over."""
        self._ended = True
        if self._attempts is not None:
            self._attempts.end()
        elif self._arriving is not None:
            self._arriving.cancel()
