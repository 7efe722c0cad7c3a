"""One request, from its arrival to its record. The order of the steps is part of the contract:

    size ─▶ key ─▶ body ─▶ alias, permission ─▶ provider ─▶ input guardrails ─▶ limits ─▶ upstream ─▶ output guardrails

Each of them can end the request with a `Refusal`. However it ends, exactly one entry is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import traceback
import zlib
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

import orjson

from penstock.gateway.auth import authenticate, authorize, client_ip
from penstock.gateway.body import Request, read_body, replace_model
from penstock.gateway.estimate import estimate_tokens
from penstock.gateway.forward import ENDED, Forward
from penstock.gateway.guardrails import StreamBlocked, block_message
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.live import Live
from penstock.gateway.model_names import restore_model
from penstock.gateway.observe.timing import server_timing
from penstock.gateway.outlet import Outlet
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources import Model
from penstock.gateway.routing import Rules, backoff_s, order
from penstock.gateway.rsgi import HTTPProtocol, Scope
from penstock.gateway.upstream import GONE, Failure, Target, aborted, failure_of, undecodable
from penstock.gateway.usage import Route, StreamReader, Usage, input_estimate, read_reply, text_tokens
from penstock.wire.exchange import Exchange

if TYPE_CHECKING:
    from penstock.gateway.app import App

__all__ = ["Call", "CallerGoneError"]

_JSON = ("content-type", "application/json")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class CallerGoneError(Exception):
    """There is nobody left to answer."""


class Call:
    __slots__ = (
        "_app",
        "_arriving",
        "_began",
        "_ended",
        "_forward",
        "_kept",
        "_last",
        "_live",
        "_protocol",
        "_request",
        "_reservation",
        "_scope",
        "_sleeper",
        "_target_reservation",
        "_tokens",
        "_watched",
        "entry",
        "gone",
        "outlet",
        "request_id",
        "route",
    )

    def __init__(
        self, app: App, live: Live, scope: Scope, protocol: HTTPProtocol, route: Route, request_id: str, ledger_id: str
    ) -> None:
        self._began = self._last = perf_counter()
        self._app = app
        self._live = live
        self._scope = scope
        self._protocol = protocol
        self.route = route
        self.request_id = request_id
        self.entry = Entry(
            request_id=ledger_id, at=time(), route=route, worker=app.worker, phases_ms={}, attempts=[], guardrails=[]
        )
        self.outlet: Outlet | None = None
        self.gone = False
        self._watched = False
        self._ended = False
        """By us: the drain's time is over."""
        self._arriving: Any = None
        self._forward: Forward | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._request: Request | None = None
        self._reservation: Reservation | None = None
        self._target_reservation: Reservation | None = None
        self._kept: tuple[tuple[str, str], ...] = ()
        """Headers that go with the reply, whatever it is."""
        self._tokens = 0

    async def run(self) -> None:
        entry = self.entry
        try:
            await self._serve()
        except Refusal as refusal:
            self._refuse(refusal)
        except CallerGoneError:
            self._went()
        except asyncio.CancelledError:
            self._refuse(Refusal(408, "timeout", "The request body did not arrive in time."))
        except RuntimeError as error:
            if type(error).__name__ != "RSGIProtocolClosed":
                self._fault(error)
            else:
                self._went()
        except Exception as error:
            self._fault(error)
        finally:
            if self.outlet is not None:
                self.outlet.close()
                entry.bytes_out = self.outlet.sent
            entry.phases_ms["total"] = (perf_counter() - self._began) * 1000
            self._app.recorder.record(entry)
            self._forward = None
            await self._settle()

    # -- the way in ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        app, live, entry = self._app, self._live, self.entry
        headers = self._scope.headers
        length = headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > app.max_body):
            raise _too_large(app.max_body)
        peer = self._scope.client
        if app.trusted:
            entry.client = client_ip(peer, ",".join(headers.get_all("x-forwarded-for")), app.trusted) or peer
        else:
            entry.client = peer.rpartition(":")[0].strip("[]")
        key = authenticate(headers.get("authorization"), headers.get("x-api-key"), live.snapshot, entry.at)
        entry.api_key_id, entry.api_key_name, entry.team_id = key.id, key.name, key.team_id
        self._mark("auth")
        data = await self._receive(length)
        self._mark("receive")
        request = self._request = read_body(data, chat=self.route == "chat")
        entry.stream = request.stream
        model = authorize(key, request.model, live.snapshot, entry.client)
        entry.model, entry.provider = model.name, model.provider
        targets = live.targets(model, self.route)
        self._mark("auth")
        guards = live.guards
        if guards is not None and guards.has_input:
            self._inspect_request(request)
            self._mark("guardrail_in")
        output = request.max_output if request.max_output is not None else app.default_output
        self._tokens = estimate_tokens(len(request.data)) + (0 if self.route == "embeddings" else output)
        self._reservation = await app.limiter.admit(key, model, live.snapshot.policies, self._tokens, time())
        self._kept = self._reservation.headers
        self._mark("quota")
        await self._dispatch(model, targets, request)

    async def _receive(self, length: str | None) -> bytes:
        if length is not None:
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
                        raise _too_large(self._app.max_body)
            data = b"".join(pieces)
        self._arriving = None
        self.entry.bytes_in = len(data)
        return data

    def _inspect_request(self, request: Request) -> None:
        guards = self._live.guards
        assert guards is not None
        try:
            body = orjson.loads(request.data)
        except orjson.JSONDecodeError:
            raise Refusal(400, "invalid_request_error", "The request body is not valid JSON.") from None
        found = guards.request(self.route, body)
        self.entry.guardrails += found.hits
        if found.blocked_by is not None:
            self.entry.blocked = True
            raise _blocked("request", found.blocked_by)
        if found.changed:
            data = orjson.dumps(body)
            self._request = masked = read_body(data, chat=False)
            request.data, request.model_at, request.model_end = masked.data, masked.model_at, masked.model_end

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def _dispatch(self, model: Model, targets: tuple[Target, ...], request: Request) -> None:
        app = self._app
        candidates = targets
        if model.routing is not None:
            candidates = order(model, model.routing, targets, app.cooldowns, app.turns, perf_counter())
        failure: Failure | None = None
        kind = "initial"
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

    async def _sleep(self, seconds: float) -> None:
        self.watch()
        sleeper = self._sleeper = self._app.loop.create_future()
        timer = self._app.loop.call_later(seconds, _wake, sleeper)
        await sleeper
        timer.cancel()
        self._sleeper = None
        self._mark("upstream")
        self._check()

    def _check(self) -> None:
        if self.gone:
            raise CallerGoneError
        if self._ended:
            raise _shutting_down()

    async def _attempt(self, target: Target, kind: Any, model: Model, request: Request) -> Failure | None:
        """None when the request has been served, well or not; a Failure while another attempt could still serve it."""
        app, entry = self._app, self.entry
        direct = target.model
        if model.routing is not None:
            try:
                self._target_reservation = await app.limiter.admit_target(direct, self._tokens, time())
            except Refusal as refusal:
                return self._over_limit(target, kind, refusal)
        entry.upstream_model, entry.provider = direct.upstream, direct.provider
        attempt = Attempt(
            model=direct.name,
            upstream=direct.upstream,
            provider_key=target.key.name,
            kind=kind,
            started_ms=(perf_counter() - self._began) * 1000,
        )
        entry.attempts.append(attempt)
        message = target.message(replace_model(request, target.upstream_json), self.request_id)
        forward = self._forward = Forward(
            app.loop, self, target, message, self._live.limits(target, model, request.stream)
        )
        guards = self._live.guards
        if self.route == "chat" or guards is not None:
            forward.prepare(guards, model.name if self.route == "chat" else None)
        await forward.run()
        exchange = forward.exchange
        self._account(attempt, exchange, forward.guard_s)
        failure = self._end_stream(forward) if forward.reader is not None else self._end_whole(forward, model)
        if failure is not None:
            attempt.error = failure.error
            await self._settle_target(0)
        return failure

    def _over_limit(self, target: Target, kind: Any, refusal: Refusal) -> Failure:
        """A target whose own limit is reached is passed over, and counts as an attempt."""
        direct = target.model
        at = (perf_counter() - self._began) * 1000
        self.entry.attempts.append(
            Attempt(
                model=direct.name,
                upstream=direct.upstream,
                provider_key=target.key.name,
                kind=kind,
                status=429,
                error="upstream_status",
                started_ms=at,
                ended_ms=at,
            )
        )
        return Failure("over_limit", None, refusal, retryable=True)

    def _account(self, attempt: Attempt, exchange: Exchange, guard_s: float) -> None:
        attempt.status = exchange.status or None
        attempt.connect_ms = exchange.connect_ns / 1e6
        now = perf_counter()
        attempt.ended_ms = (now - self._began) * 1000
        if exchange.first_byte >= 0 <= exchange.start:
            waited = (exchange.first_byte - exchange.start) / 1e6
            attempt.first_byte_ms = attempt.started_ms + attempt.connect_ms + waited
        spent = (now - self._last) * 1000
        self._last = now
        phases = self.entry.phases_ms
        if attempt.connect_ms:
            phases["connect"] = phases.get("connect", 0.0) + min(attempt.connect_ms, spent)
            spent = max(0.0, spent - attempt.connect_ms)
        if guard_s:
            phases["guardrail_out"] = phases.get("guardrail_out", 0.0) + guard_s * 1000
            spent = max(0.0, spent - guard_s * 1000)
        phases["upstream"] = phases.get("upstream", 0.0) + spent

    # -- whole replies ------------------------------------------------------------------------------------------------

    def _end_whole(self, forward: Forward, model: Model) -> Failure | None:
        exchange = forward.exchange
        if self.gone and exchange.start >= 0:
            self._estimate(0)
        self._check()
        failure = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
        if failure is not None:
            self._note_upstream(forward)
            return failure
        try:
            body = _plain(forward)
            reply = read_reply(body)
        except ValueError:
            return undecodable()
        entry = self.entry
        entry.upstream_id = reply.name
        entry.finish = reply.finish
        usage = reply.reported
        if usage is None:
            embeddings = self.route == "embeddings"
            self._estimate(0 if embeddings else text_tokens(body))
        else:
            self._report(usage)
        guards = self._live.guards
        if guards is not None and guards.has_output:
            try:
                body = self._inspect_reply(body)
            except orjson.JSONDecodeError:  # it is stricter than the reading above
                return undecodable()
            self._mark("guardrail_out")
        if self.route == "chat":
            body = restore_model(body, bytes(reply.model), model.name)
        self._note_upstream(forward)
        self._served_by(forward.target)
        entry.status = exchange.status
        entry.bytes_out = len(body)
        headers = self._head(_content_type(forward, "application/json"))
        entry.ttft_ms = (self._last - self._began) * 1000
        self._protocol.response_bytes(exchange.status, headers, body)
        return None

    def _inspect_reply(self, body: bytes) -> bytes:
        guards = self._live.guards
        assert guards is not None
        found = orjson.loads(body)
        if not isinstance(found, dict):
            return body
        inspection = guards.reply(self.route, found)
        self.entry.guardrails += inspection.hits
        if inspection.blocked_by is not None:
            self.entry.blocked = True
            self._mark("guardrail_out")
            raise _blocked("response", inspection.blocked_by)
        return orjson.dumps(found) if inspection.changed else body

    # -- streams ------------------------------------------------------------------------------------------------------

    def commit(self, forward: Forward) -> Outlet:
        """The first piece of a stream is about to leave."""
        entry, exchange = self.entry, forward.exchange
        now = perf_counter()
        phases = dict(entry.phases_ms)
        connect = exchange.connect_ns / 1e6
        waited = (now - self._last) * 1000
        if connect:
            phases["connect"] = phases.get("connect", 0.0) + connect
        phases["upstream"] = phases.get("upstream", 0.0) + max(0.0, waited - connect)
        entry.ttft_ms = phases["total"] = (now - self._began) * 1000
        self._note_upstream(forward)
        self._served_by(forward.target)
        outlet = self.outlet = Outlet(
            self._app.loop,
            self._app.peers,
            self._scope.client,
            self._protocol,
            exchange.status,
            [
                _content_type(forward, "text/event-stream"),
                ("cache-control", "no-cache"),
                ("server-timing", server_timing(phases)),
                *self._app.standing_headers,
                ("x-penstock-request-id", self.request_id),
                *self._kept,
            ],
        )
        return outlet

    def block(self, blocked: StreamBlocked) -> None:
        entry = self.entry
        entry.blocked = True
        entry.status, entry.error = 422, "content_filter"
        refusal = _blocked("response", blocked.guardrail)
        if self.outlet is None:
            self._mark("upstream")
            body = refusal.body()
            entry.bytes_out = len(body)
            self._watched = True  # there is nothing to be watched behind a reply
            self._protocol.response_bytes(422, self._head(_JSON), body)
        else:
            forward = self._forward
            assert forward is not None
            assert forward.guard is not None
            self.outlet.send(forward.guard.late_block(blocked.guardrail))
            self.outlet.close()

    def _end_stream(self, forward: Forward) -> Failure | None:
        exchange, reader = forward.exchange, forward.reader
        assert reader is not None
        trouble = exchange.trouble
        finished = trouble is None or forward.complete
        if self.gone and not forward.complete and forward.blocked is None:
            self._books_of(forward, reader)
            raise CallerGoneError
        failed = None
        if not finished and forward.blocked is None:
            failed = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
            if self.outlet is None and not self._ended:
                if reader.events:  # held back, and lost with the attempt; it was billed all the same
                    self._books_of(forward, reader)
                return failed
        if forward.blocked is None:
            forward.finish()
        entry = self.entry
        self._books_of(forward, reader)
        if forward.blocked is not None:
            entry.finish = "blocked"
            return None
        if self._ended and failed is not None:
            failed = Failure("aborted", None, _shutting_down(), retryable=False)
        if self.outlet is None:
            if failed is not None:
                raise failed.refusal
            return aborted()
        if failed is None:
            entry.status = exchange.status
            return None
        # The head is gone, so the caller is told within the stream; its own reader sees that the end is missing.
        refusal = failed.refusal
        kind = refusal.type if failed.error == "timeout" or self._ended else "stream_aborted"
        entry.attempts[-1].error = failed.error if failed.error == "timeout" else "aborted"
        entry.status, entry.error, entry.finish = refusal.status, kind, "cut"
        self._app.cooldowns.failed(forward.target.model, failed, perf_counter())
        self.outlet.send(_error_event(self.route, reader, kind))
        return None

    def _books_of(self, forward: Forward, reader: StreamReader) -> None:
        entry = self.entry
        entry.events = reader.events
        entry.finish = reader.finish
        entry.upstream_id = reader.id
        if forward.guard is not None:
            entry.guardrails += forward.guard.hits
        if reader.usage is not None:
            self._report(reader.usage)
        else:
            self._estimate(reader.tokens)

    # -- books --------------------------------------------------------------------------------------------------------

    def _report(self, usage: Usage) -> None:
        entry = self.entry
        entry.usage_source = "upstream"
        entry.input_tokens, entry.output_tokens = usage.input, usage.output
        entry.reasoning_tokens, entry.cached_tokens = usage.reasoning, usage.cached

    def _estimate(self, output: int) -> None:
        assert self._request is not None
        entry = self.entry
        entry.usage_source = "estimated"
        entry.input_tokens, entry.output_tokens = input_estimate(self._request.data), output

    async def _settle(self) -> None:
        tokens = self.entry.input_tokens + self.entry.output_tokens
        if self._target_reservation is not None:
            await self._settle_target(tokens)
        if self._reservation is not None and not self._reservation.settled:
            await self._app.limiter.settle(self._reservation, tokens, time())

    async def _settle_target(self, tokens: int) -> None:
        reservation, self._target_reservation = self._target_reservation, None
        if reservation is not None:
            await self._app.limiter.settle(reservation, tokens, time())

    def _mark(self, phase: str) -> None:
        now = perf_counter()
        phases = self.entry.phases_ms
        spent = (now - self._last) * 1000
        phases[phase] = phases[phase] + spent if phase in phases else spent
        self._last = now

    # -- the way out --------------------------------------------------------------------------------------------------

    def _head(self, content_type: tuple[str, str]) -> list[tuple[str, str]]:
        phases = self.entry.phases_ms
        now = perf_counter()
        phases["serialise"] = (now - self._last) * 1000
        self._last = now
        phases["total"] = (now - self._began) * 1000
        return [
            content_type,
            ("server-timing", server_timing(phases)),
            *self._app.standing_headers,
            ("x-penstock-request-id", self.request_id),
            *self._kept,
        ]

    def _note_upstream(self, forward: Forward) -> None:
        """The upstream's headers that a caller gets to see."""
        value = forward.headers.get(b"x-request-id")
        if value and len(value) <= 256 and value.isascii():
            given = value.decode()
            if given.isprintable() and forward.target.redact(given) == given:
                self._keep("x-upstream-request-id", given)

    def _served_by(self, target: Target) -> None:
        if target.model.name != self.entry.model:
            self._keep("x-penstock-served-by", target.model.name)

    def _keep(self, name: str, value: str) -> None:
        """Of several attempts the last counts."""
        self._kept = (*(pair for pair in self._kept if pair[0] != name), (name, value))

    def _refuse(self, refusal: Refusal) -> None:
        entry = self.entry
        entry.status = refusal.status
        # An upstream may call its error anything; what is not a word is not for the records.
        entry.error = refusal.type if _WORD.fullmatch(refusal.type) else "upstream_error"
        entry.limited_by = refusal.limited_by
        body = refusal.body()
        entry.bytes_out = len(body)
        headers = self._head(_JSON)
        if refusal.retry_after is not None:
            headers.append(("retry-after", str(refusal.retry_after)))
        headers += [pair for pair in refusal.headers if pair not in self._kept]
        self._protocol.response_bytes(refusal.status, headers, body)

    def _fault(self, error: BaseException) -> None:
        """Ours: the caller gets a bare 500, the log gets the place. Messages of exceptions may quote what was sent."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"penstock gateway: a fault in Penstock ended request {self.request_id}: {type(error).__name__} in "
            f"{place.name} ({place.filename}:{place.lineno})\n"
        )
        refusal = Refusal(500, "internal_error", "The gateway failed; its log says where.")
        if self.outlet is not None:
            self.entry.status, self.entry.error, self.entry.finish = 500, refusal.type, "cut"
            if self._forward is not None and self._forward.reader is not None:
                self.outlet.send(_error_event(self.route, self._forward.reader, refusal.type))
        else:
            self._refuse(refusal)

    def _went(self) -> None:
        self.entry.status, self.entry.error = 499, "client_disconnected"
        self.entry.finish = "disconnected"

    def tick(self, now: float, receive_s: float) -> None:
        """Called ten times a second, for what takes long."""
        forward = self._forward
        if forward is not None:
            if now >= forward.due:
                forward.tick(now)
        elif self._arriving is not None and perf_counter() - self._began > receive_s:
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
            self._protocol.client_disconnect().add_done_callback(self._on_gone)

    def _on_gone(self, _watched: object) -> None:
        if self.gone:
            return
        self.gone = True
        if self._sleeper is not None:
            _wake(self._sleeper)
        elif self._forward is not None and self._forward.blocked is None:
            self._forward.abort(GONE)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "The gateway is shutting down.")


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "invalid_request_error", f"The request body is larger than the limit of {limit} bytes.")


def _blocked(side: str, guardrail: str | None) -> Refusal:
    return Refusal(422, "content_filter", block_message(side, guardrail))


def _content_type(forward: Forward, default: str) -> tuple[str, str]:
    given = forward.headers.get(b"content-type", b"").decode("latin-1")
    return "content-type", given if given.isascii() and given.isprintable() and given else default


def _plain(forward: Forward) -> bytes:
    """The body without its encoding. None was asked for; some upstreams compress all the same."""
    pieces = forward.exchange.pieces
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    given = forward.headers.get(b"content-encoding")
    encoding = b"identity" if given is None else given.strip().lower()
    if encoding == b"identity":
        return body
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        try:
            reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
            plain = reader.decompress(body, 256 << 20)
        except zlib.error:
            raise ValueError("broken encoding") from None
        if reader.eof:
            return plain
    raise ValueError("unknown encoding")


def _error_event(route: Route, reader: StreamReader, kind: str) -> bytes:
    message = "The stream ended before it was complete."
    lead = b"" if reader.at_boundary else b"\n\n"
    if route == "responses":
        event = {
            "type": "error",
            "sequence_number": reader.sequence + 1,
            "code": kind,
            "message": message,
            "param": None,
        }
        return lead + b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"
    return lead + b"data: " + orjson.dumps({"error": {"message": message, "type": kind}}) + b"\n\n"
