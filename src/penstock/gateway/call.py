"""One request, from its arrival to its record. The order of the steps is part of the contract:

    size ─▶ key ─▶ body ─▶ alias, permission ─▶ provider ─▶ input guardrails ─▶ limits ─▶ upstream ─▶ output guardrails

Each of them can end the request with a `Refusal`. However it ends, exactly one entry is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
import weakref
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

import orjson

from penstock.gateway.auth import authenticate, authorize, client_ip
from penstock.gateway.body import Request, read_body, replace_model
from penstock.gateway.books import AttemptKind, Books
from penstock.gateway.estimate import estimate_tokens
from penstock.gateway.forward import ENDED, Forward
from penstock.gateway.guardrails import Guards, StreamBlocked
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.live import Live
from penstock.gateway.model_names import restore_model
from penstock.gateway.observe.timing import server_timing
from penstock.gateway.outlet import Outlet
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import (
    JSON,
    blocked,
    content_type,
    error_event,
    late_body,
    plain_body,
    shutting_down,
    too_large,
)
from penstock.gateway.resources import Model
from penstock.gateway.routing import Rules, backoff_s, order
from penstock.gateway.rsgi import HTTPProtocol, Scope
from penstock.gateway.upstream import GONE, Failure, Target, aborted, failure_of, undecodable
from penstock.gateway.usage import Route, StreamReader, read_reply, text_tokens

if TYPE_CHECKING:
    from penstock.gateway.app import App

__all__ = ["Call", "CallerGoneError"]

EARLY_BYTES = 1 << 16
"""A body up to this is fetched from the server's thread while the key is looked up, which hides the way between the
threads. A larger one of somebody without a key is not taken at all."""


class CallerGoneError(Exception):
    """There is nobody left to answer."""


class Call:
    __slots__ = (
        "__weakref__",
        "_app",
        "_arriving",
        "_body",
        "_ended",
        "_forward",
        "_kept",
        "_live",
        "_protocol",
        "_reservation",
        "_scope",
        "_sleeper",
        "_target_reservation",
        "_tokens",
        "_watched",
        "books",
        "gone",
        "outlet",
        "request_id",
        "route",
    )

    def __init__(
        self, app: App, live: Live, scope: Scope, protocol: HTTPProtocol, route: Route, request_id: str, ledger_id: str
    ) -> None:
        self.books = Books(ledger_id, route, app.worker)
        self._app = app
        self._live = live
        self._scope = scope
        self._protocol = protocol
        self.route = route
        self.request_id = request_id
        self.outlet: Outlet | None = None
        self.gone = False
        self._watched = False
        self._ended = False
        """By us: the drain's time is over."""
        self._arriving: Any = None
        self._forward: Forward | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._body = b""
        self._reservation: Reservation | None = None
        self._target_reservation: Reservation | None = None
        self._kept: tuple[tuple[str, str], ...] = ()
        """Headers that go with the reply, whatever it is."""
        self._tokens = 0

    async def run(self) -> None:
        try:
            await self._serve()
        except Refusal as refusal:
            self._refuse(refusal)
        except CallerGoneError:
            self._went()
        except asyncio.CancelledError:
            self._refuse(late_body())
        except Exception as error:
            if type(error).__name__ == "RSGIProtocolClosed":
                self._went()
            else:
                self._fault(error)
        finally:
            if self.outlet is not None:
                self.outlet.close()
                self.books.entry.bytes_out = self.outlet.sent
            self._app.recorder.record(self.books.close())
            self._forward = None
            await self._settle()

    # -- the way in ---------------------------------------------------------------------------------------------------

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
        key = authenticate(headers.get("authorization"), headers.get("x-api-key"), live.snapshot, entry.at)
        entry.api_key_id, entry.api_key_name, entry.team_id = key.id, key.name, key.team_id
        books.mark("auth")
        data = await self._receive(length)
        books.mark("receive")
        request = read_body(data, chat=self.route == "chat")
        self._body = request.data
        entry.stream = request.stream
        model = authorize(key, request.model, live.snapshot, entry.client)
        entry.model, entry.provider = model.name, model.provider
        targets = live.targets(model, self.route)
        books.mark("auth")
        guards = live.guards
        if guards is not None and guards.has_input:
            request = self._inspect_request(guards, request)
            books.mark("guardrail_in")
        output = request.max_output if request.max_output is not None else app.default_output
        self._tokens = estimate_tokens(len(request.data)) + (0 if self.route == "embeddings" else output)
        self._reservation = await app.limiter.admit(key, model, live.snapshot.policies, self._tokens, time())
        self._kept = self._reservation.headers
        books.mark("quota")
        await self._dispatch(model, targets, request)

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
        self._arriving = None
        self.books.entry.bytes_in = len(data)
        return data

    def _inspect_request(self, guards: Guards, request: Request) -> Request:
        entry = self.books.entry
        try:
            body = orjson.loads(request.data)
        except orjson.JSONDecodeError:
            raise Refusal(400, "invalid_request_error", "The request body is not valid JSON.") from None
        found = guards.request(self.route, body)
        entry.guardrails += found.hits
        if found.blocked_by is not None:
            entry.blocked = True
            raise blocked("request", found.blocked_by)
        if not found.changed:
            return request
        masked = read_body(orjson.dumps(body), chat=False)
        self._body = masked.data
        return masked

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def _dispatch(self, model: Model, targets: tuple[Target, ...], request: Request) -> None:
        app = self._app
        candidates = targets
        if model.routing is not None:
            candidates = order(model, model.routing, targets, app.cooldowns, app.turns, perf_counter())
        failure: Failure | None = None
        kind: AttemptKind = "initial"
        for number, target in enumerate(candidates, 1):
            retries = 0
            while True:
                failure = await self._attempt(target, kind, model, request)
                if failure is None:
                    app.cooldowns.succeeded(target.model)
                    return
                rules = Rules(model.routing, app.config.upstream.retries)
                app.cooldowns.failed(target.model, failure, perf_counter())
                if not rules.tries_again(target.model, failure, retries, number < len(candidates)):
                    break
                await self._sleep(backoff_s(retries, failure))
                retries += 1
                kind = "retry"
            if not rules.moves_on(failure):
                break
            kind = "fallback"
        assert failure is not None
        raise failure.refusal

    async def _attempt(self, target: Target, kind: AttemptKind, model: Model, request: Request) -> Failure | None:
        """None when the request has been served, well or not; a Failure while another attempt could still serve it."""
        app, books = self._app, self.books
        direct = target.model
        if model.routing is not None:
            try:
                self._target_reservation = await app.limiter.admit_target(direct, self._tokens, time())
            except Refusal as refusal:
                books.over_limit(target, kind)
                return Failure("over_limit", None, refusal, retryable=True)
        books.entry.upstream_model, books.entry.provider = direct.upstream, direct.provider
        attempt = books.attempt(target, kind)
        message = target.message(replace_model(request, target.upstream_json), self.request_id)
        limits = self._live.limits(target, model, request.stream)
        forward = self._forward = Forward(app.loop, self, target, message, limits)
        guards = self._live.guards
        if self.route == "chat" or guards is not None:
            forward.prepare(guards, model.name if self.route == "chat" else None)
        await forward.run()
        books.ended(attempt, forward.exchange, forward.guard_s)
        reader = forward.reader
        failure = self._end_whole(forward, model) if reader is None else self._end_stream(forward, reader)
        if failure is not None:
            attempt.error = failure.error
            await self._settle_target(0)
        return failure

    async def _sleep(self, seconds: float) -> None:
        self.watch()
        sleeper = self._sleeper = self._app.loop.create_future()
        timer = self._app.loop.call_later(seconds, _wake, sleeper)
        await sleeper
        timer.cancel()
        self._sleeper = None
        self.books.mark("upstream")
        self._check()

    def _check(self) -> None:
        if self.gone:
            raise CallerGoneError
        if self._ended:
            raise shutting_down()

    async def _settle(self) -> None:
        tokens = self.books.tokens
        if self._target_reservation is not None:
            await self._settle_target(tokens)
        if self._reservation is not None and not self._reservation.settled:
            await self._app.limiter.settle(self._reservation, tokens, time())

    async def _settle_target(self, tokens: int) -> None:
        reservation, self._target_reservation = self._target_reservation, None
        if reservation is not None:
            await self._app.limiter.settle(reservation, tokens, time())

    # -- whole replies ------------------------------------------------------------------------------------------------

    def _end_whole(self, forward: Forward, model: Model) -> Failure | None:
        exchange, books = forward.exchange, self.books
        if self.gone and exchange.start >= 0:
            books.estimate(self._body, 0)
        self._check()
        failure = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
        if failure is not None:
            self._note_upstream(forward)
            return failure
        try:
            body = plain_body(forward)
            reply = read_reply(body)
        except ValueError:
            return undecodable()
        entry = books.entry
        entry.upstream_id = reply.name
        entry.finish = reply.finish
        usage = reply.reported
        if usage is not None:
            books.report(usage)
        else:
            books.estimate(self._body, 0 if self.route == "embeddings" else text_tokens(body))
        guards = self._live.guards
        if guards is not None and guards.has_output:
            try:
                body = self._inspect_reply(guards, body)
            except orjson.JSONDecodeError:  # it is stricter than the reading above
                return undecodable()
            finally:
                books.mark("guardrail_out")
        if self.route == "chat":
            body = restore_model(body, bytes(reply.model), model.name)
        self._note_upstream(forward)
        self._served_by(forward.target)
        entry.status = exchange.status
        self._answer(exchange.status, content_type(forward, "application/json"), body)
        entry.ttft_ms = entry.phases_ms["total"]
        return None

    def _inspect_reply(self, guards: Guards, body: bytes) -> bytes:
        found = orjson.loads(body)
        if not isinstance(found, dict):
            return body
        inspection = guards.reply(self.route, found)
        self.books.entry.guardrails += inspection.hits
        if inspection.blocked_by is not None:
            self.books.entry.blocked = True
            raise blocked("response", inspection.blocked_by)
        return orjson.dumps(found) if inspection.changed else body

    # -- streams ------------------------------------------------------------------------------------------------------

    def commit(self, forward: Forward) -> Outlet:
        """The first piece of a stream is about to leave."""
        self._note_upstream(forward)
        self._served_by(forward.target)
        phases = self.books.phases_at_first_byte(forward.exchange)
        headers = [
            content_type(forward, "text/event-stream"),
            ("cache-control", "no-cache"),
            ("server-timing", server_timing(phases)),
            *self._app.standing_headers,
            ("x-penstock-request-id", self.request_id),
            *self._kept,
        ]
        app = self._app
        status = forward.exchange.status
        outlet = self.outlet = Outlet(app.loop, app.peers, self._scope.client, self._protocol, status, headers)
        return outlet

    def block(self, forward: Forward, by: StreamBlocked) -> None:
        entry = self.books.entry
        entry.blocked = True
        entry.status, entry.error = 422, "content_filter"
        if self.outlet is None:
            self.books.mark("upstream")
            self._watched = True  # there is nothing to be watched behind a reply
            self._answer(422, JSON, blocked("response", by.guardrail).body())
        else:
            assert forward.guard is not None
            self.outlet.send(forward.guard.late_block(by.guardrail))
            self.outlet.close()

    def _end_stream(self, forward: Forward, reader: StreamReader) -> Failure | None:
        exchange, books = forward.exchange, self.books
        if self.gone and not forward.complete and forward.blocked is None:
            self._close_stream(forward, reader)
            raise CallerGoneError
        failed = None
        if forward.blocked is None:
            if exchange.trouble is not None and not forward.complete:
                failed = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
                if self.outlet is None and not self._ended:
                    if reader.events:  # held back, and lost with the attempt; it was billed all the same
                        self._close_stream(forward, reader)
                    return failed
            forward.finish()
        self._close_stream(forward, reader)
        if forward.blocked is not None:
            books.entry.finish = "blocked"
            return None
        if self.outlet is None:
            self._check()
            return aborted()
        if failed is None:
            books.entry.status = exchange.status
            return None
        # The head is gone, so the caller is told within the stream; its own reader sees that the end is missing.
        self._app.cooldowns.failed(forward.target.model, failed, perf_counter())
        refusal = shutting_down() if self._ended else failed.refusal
        kind = refusal.type if self._ended or failed.error == "timeout" else "stream_aborted"
        books.entry.attempts[-1].error = "timeout" if failed.error == "timeout" else "aborted"
        books.failed(refusal.status, kind, "cut")
        self.outlet.send(error_event(self.route, reader, kind))
        return None

    def _close_stream(self, forward: Forward, reader: StreamReader) -> None:
        self.books.stream(reader, self._body)
        if forward.guard is not None:
            self.books.entry.guardrails += forward.guard.hits

    # -- the way out --------------------------------------------------------------------------------------------------

    def _answer(self, status: int, kind: tuple[str, str], body: bytes, *more: tuple[str, str]) -> None:
        self.books.entry.bytes_out = len(body)
        headers = [
            kind,
            ("server-timing", server_timing(self.books.phases_at_head())),
            *self._app.standing_headers,
            ("x-penstock-request-id", self.request_id),
            *self._kept,
            *more,
        ]
        self._protocol.response_bytes(status, headers, body)

    def _refuse(self, refusal: Refusal) -> None:
        self.books.failed(refusal.status, refusal.type)
        self.books.entry.limited_by = refusal.limited_by
        more = [pair for pair in refusal.headers if pair not in self._kept]
        if refusal.retry_after is not None:
            more.append(("retry-after", str(refusal.retry_after)))
        self._answer(refusal.status, JSON, refusal.body(), *more)

    def _fault(self, error: BaseException) -> None:
        """Ours: the caller gets a bare 500, the log gets the place. Messages of exceptions may quote what was sent."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"penstock gateway: a fault in Penstock ended request {self.request_id}: {type(error).__name__} in "
            f"{place.name} ({place.filename}:{place.lineno})\n"
        )
        refusal = Refusal(500, "internal_error", "The gateway failed; its log says where.")
        if self.outlet is None:
            self._refuse(refusal)
            return
        self.books.failed(500, refusal.type, "cut")
        if self._forward is not None and self._forward.reader is not None:
            self.outlet.send(error_event(self.route, self._forward.reader, refusal.type))

    def _went(self) -> None:
        self.books.failed(499, "client_disconnected", "disconnected")

    def _note_upstream(self, forward: Forward) -> None:
        """The upstream's headers that a caller gets to see."""
        value = forward.headers.get(b"x-request-id")
        if value and len(value) <= 256 and value.isascii():
            given = value.decode()
            if given.isprintable() and forward.target.redact(given) == given:
                self._keep("x-upstream-request-id", given)

    def _served_by(self, target: Target) -> None:
        if target.model.name != self.books.entry.model:
            self._keep("x-penstock-served-by", target.model.name)

    def _keep(self, name: str, value: str) -> None:
        """Of several attempts the last counts."""
        self._kept = (*(pair for pair in self._kept if pair[0] != name), (name, value))

    # -- what happens meanwhile ---------------------------------------------------------------------------------------

    def tick(self, now: float, receive_s: float) -> None:
        """Called ten times a second, for what takes long."""
        forward = self._forward
        if forward is not None:
            if now >= forward.due:
                forward.tick(now)
        elif self._arriving is not None and self.books.elapsed_s > receive_s:
            self._arriving.cancel()

    def end(self) -> None:
        """The drain's time is over."""
        self._ended = True
        if self._arriving is not None:
            self._arriving.cancel()
        elif self._sleeper is not None:
            _wake(self._sleeper)
        elif self._forward is not None:
            self._forward.abort(ENDED)

    def watch(self) -> None:
        """Notice when the caller goes away."""
        if not self._watched:
            self._watched = True
            self._protocol.client_disconnect().add_done_callback(_Gone(self))

    def _on_gone(self, _watched: object) -> None:
        if self.gone:
            return
        self.gone = True
        if self._sleeper is not None:
            _wake(self._sleeper)
        elif self._forward is not None and self._forward.blocked is None:
            self._forward.abort(GONE)


class _Gone:
    """Tells a call that its caller went away. Granian keeps what it has called, so this must not keep the call."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = weakref.ref(call)

    def __call__(self, watched: object) -> None:
        call = self._call()
        if call is not None:
            call._on_gone(watched)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
