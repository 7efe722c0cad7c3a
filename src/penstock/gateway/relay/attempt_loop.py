"""The loop over upstream attempts: try one target after the other until one has served the request.

order targets ─▶ attempt ─┬─▶ whole reply ─▶ output guardrails ─▶ response
       ▲                  ├─▶ stream, relayed as it arrives ─▶ check how it ended
       └──── failure ◀────┘
"""

from __future__ import annotations

import asyncio
import weakref
from time import perf_counter, time
from typing import TYPE_CHECKING

import orjson

from penstock.gateway.guardrails import Guards, StreamBlocked
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.accounting import AttemptKind
from penstock.gateway.relay.body import Request, replace_model
from penstock.gateway.relay.caller_response import CallerResponse
from penstock.gateway.relay.model_names import restore_model
from penstock.gateway.relay.replies import JSON, blocked, content_type, error_event, shutting_down
from penstock.gateway.relay.response_stream import ResponseStream
from penstock.gateway.relay.routing import FailurePolicy, backoff_s, order_targets
from penstock.gateway.relay.upstream import (
    CALLER_GONE,
    Target,
    UpstreamFailure,
    aborted,
    failure_of,
    plain_body,
    undecodable,
)
from penstock.gateway.relay.upstream_attempt import SHUTTING_DOWN, UpstreamAttempt
from penstock.gateway.relay.usage import StreamReader, read_reply, text_tokens
from penstock.gateway.resources.snapshot import Model
from penstock.gateway.routes import Route
from penstock.gateway.serving.compiled_snapshot import CompiledSnapshot
from penstock.wire.exchange import WireError

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["AttemptLoop", "CallerGoneError"]


class CallerGoneError(Exception):
    """The caller closed its connection before it had the reply."""


class AttemptLoop:
    """The upstream attempts of one request. Owns the `UpstreamAttempt` that is running."""

    __slots__ = (
        "__weakref__",
        "_app",
        "_attempt",
        "_backoff",
        "_compiled",
        "_guards",
        "_model",
        "_request",
        "_reservation",
        "_response",
        "_settled_tokens",
        "_shutting_down",
        "_tokens",
        "_watching_caller",
        "accounting",
        "caller_gone",
        "route",
    )

    def __init__(
        self,
        app: App,
        compiled: CompiledSnapshot,
        response: CallerResponse,
        route: Route,
        model: Model,
        request: Request,
        tokens: int,
        guards: Guards | None,
    ) -> None:
        """`tokens` is the estimated number of tokens that the request uses."""
        self._app = app
        self._compiled = compiled
        self._guards = guards
        self._response = response
        self.accounting = response.accounting
        self.route = route
        self._model = model
        self._request = request
        self._tokens = tokens
        self._attempt: UpstreamAttempt | None = None
        self._reservation: Reservation | None = None
        """The reservation against the limits of the target."""
        self._settled_tokens = 0
        """Tokens that earlier attempts used."""
        self._backoff: asyncio.Future[None] | None = None
        self.caller_gone = False
        self._watching_caller = False
        self._shutting_down = False
        """True once the drain time is over."""

    @property
    def stream(self) -> ResponseStream | None:
        return self._response.stream

    async def run(self, targets: tuple[Target, ...]) -> None:
        """Return when the request has been served, even with a failed reply. Raise Refusal or CallerGoneError otherwise."""
        app, model = self._app, self._model
        candidates = targets
        if model.routing is not None:
            candidates = order_targets(model, model.routing, targets, app.cooldowns, app.round_robin, perf_counter())
        failure: UpstreamFailure | None = None
        kind: AttemptKind = "initial"
        for number, target in enumerate(candidates, 1):
            retries = 0
            while True:
                failure = await self._try_target(target, kind)
                if failure is None:
                    return
                policy = FailurePolicy(model.routing, app.config.upstream.retries)
                app.cooldowns.failed(target, failure, perf_counter())
                if not policy.allows_retry(target.model, failure, retries, number < len(candidates)):
                    break
                await self._sleep(backoff_s(retries, failure))
                retries += 1
                kind = "retry"
            if not policy.allows_fallback(failure):
                break
            kind = "fallback"
        assert failure is not None
        if failure.quotes_upstream:
            await self._inspect_refusal(failure.refusal)
        raise failure.refusal

    async def close(self) -> None:
        self._attempt = None  # breaks a reference cycle
        await self._settle()

    async def _try_target(self, target: Target, kind: AttemptKind) -> UpstreamFailure | None:
        """Return None if the request was answered, or the failure if another attempt may still serve it."""
        app, accounting, model, request = self._app, self.accounting, self._model, self._request
        direct = target.model
        self._raise_if_ended()
        if model.routing is not None:
            try:
                self._reservation = await app.limiter.admit_target(direct, self._tokens, time())
            except Refusal as refusal:
                accounting.skip_over_limit(target, kind)
                return UpstreamFailure("over_limit", None, refusal, retryable=True)
            self._raise_if_ended()  # asking takes a while XX
        accounting.entry.upstream_model, accounting.entry.provider = direct.upstream, direct.provider
        accounting.enter("upstream")
        record = accounting.begin_attempt(target, kind)
        message = target.message(replace_model(request, target.upstream_json), self._response.request_id)
        timeouts = self._compiled.timeouts(target, model, request.stream)
        attempt = self._attempt = UpstreamAttempt(app.loop, self, target, message, timeouts)
        guards = self._guards
        if self.route == "chat" or guards is not None:
            attempt.prepare(guards, model.name if self.route == "chat" else None)
        await attempt.run()
        accounting.end_attempt(record, attempt.exchange, attempt.guard_s)
        reader = attempt.reader
        failure = await (self._finish_whole_reply(attempt) if reader is None else self._finish_stream(attempt, reader))
        if failure is not None:
            record.error = failure.error
            await self._settle()
        return failure

    def _record_served(self, attempt: UpstreamAttempt, *, succeeded: bool) -> None:
        """Record the status; only a successful reply clears the cooldown."""
        self.accounting.entry.status = attempt.exchange.status
        if succeeded:
            self._app.cooldowns.succeeded(attempt.target)
        else:
            self.accounting.record_failed_reply()

    async def _settle(self) -> None:
        """Charge the target's limits with the tokens of its own attempt."""
        spent, self._settled_tokens = self.accounting.tokens - self._settled_tokens, self.accounting.tokens
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            await self._app.limiter.settle(reservation, spent, time())

    async def _sleep(self, seconds: float) -> None:
        self.watch()
        self.accounting.enter("backoff")
        backoff = self._backoff = self._app.loop.create_future()
        timer = self._app.loop.call_later(seconds, _wake, backoff)
        await backoff
        timer.cancel()
        self._backoff = None
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self.caller_gone:
            raise CallerGoneError
        if self._shutting_down:
            raise shutting_down()

    # -- whole replies ------------------------------------------------------------------------------------------------

    async def _finish_whole_reply(self, attempt: UpstreamAttempt) -> UpstreamFailure | None:
        exchange, accounting, response = attempt.exchange, self.accounting, self._response
        if self.caller_gone and exchange.sent >= 0:  # a provider bills only a request that it received whole
            accounting.add_estimated_usage(self._request.data, 0)
        self._raise_if_ended()
        failure = failure_of(exchange, attempt.headers, attempt.target, attempt.elapsed_ms)
        if failure is not None:
            response.add_upstream_headers(attempt)
            return failure
        try:
            body = plain_body(exchange, attempt.headers)
            reply = read_reply(body)
        except ValueError:
            return undecodable()
        entry = accounting.entry
        accounting.identify(attempt.target, reply.name, reply.finish)
        usage = reply.reported
        if usage is not None:
            accounting.add_usage(usage)
        else:
            accounting.add_estimated_usage(self._request.data, 0 if self.route == "embeddings" else text_tokens(body))
        guards = self._guards
        if guards is not None and guards.has_output:
            accounting.enter("guardrail_out")
            try:
                body = await self._inspect(guards, body)
            except ValueError:  # the guardrails' parser is stricter than `read_reply`
                return undecodable()
            accounting.enter("serialise")
        if self.route == "chat":
            body = restore_model(body, bytes(reply.model), orjson.dumps(self._model.name))
        response.add_upstream_headers(attempt)
        response.add_served_by(attempt.target)
        self._record_served(attempt, succeeded=not reply.failed)
        response.send(exchange.status, content_type(attempt, "application/json"), body)
        entry.ttft_ms = entry.phases_ms["total"]
        return None

    async def _inspect(self, guards: Guards, body: bytes) -> bytes:
        inspection = await guards.reply(body)
        self.accounting.record_inspection(inspection)
        if inspection.blocked_by is not None:
            raise blocked("response", inspection.blocked_by, timed_out=inspection.timed_out)
        return inspection.body

    async def _inspect_refusal(self, refusal: Refusal) -> None:
        """Inspect an error text of the upstream like a reply: it may quote the request or the model's output."""
        guards = self._guards
        if guards is None or not guards.has_output:
            return
        self.accounting.enter("guardrail_out")
        error = orjson.loads(await self._inspect(guards, refusal.body()))["error"]
        refusal.message, refusal.code, refusal.param = error["message"], error.get("code"), error.get("param")

    # -- streams ------------------------------------------------------------------------------------------------------

    def begin_stream(self, attempt: UpstreamAttempt) -> ResponseStream:
        """Send the head of the stream, before its first bytes."""
        return self._response.begin_stream(attempt)

    def block(self, attempt: UpstreamAttempt, cause: StreamBlocked) -> None:
        entry = self.accounting.entry
        refusal = blocked("response", cause.guardrail, timed_out=cause.timed_out, too_long=cause.too_long)
        entry.blocked = True
        entry.status, entry.error = refusal.status, refusal.type
        if self.stream is None:
            self.accounting.record_time(attempt.exchange, attempt.guard_s)
            self._watching_caller = True  # the reply is complete, so there is nothing left to watch
            self._response.send(refusal.status, JSON, refusal.body())
        else:
            assert attempt.guard is not None
            self.stream.send(attempt.guard.block_event(cause))
            self.stream.close()

    async def _finish_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> UpstreamFailure | None:
        exchange, accounting = attempt.exchange, self.accounting
        if self.caller_gone and not attempt.complete and attempt.blocked_by is None:
            self._record_stream(attempt, reader)
            if self.stream is not None and self.stream.full:  # the caller may read on later: tell it the end is missing
                self.stream.send(error_event(self.route, attempt, reader, "stream_aborted"))
            raise CallerGoneError
        failed = None
        if attempt.blocked_by is None:
            if exchange.error is not None and not attempt.complete:
                failed = failure_of(exchange, attempt.headers, attempt.target, attempt.elapsed_ms)
                if self.stream is None and not self._shutting_down:
                    self._record_lost_stream(attempt, reader)
                    return failed
            if attempt.guard is not None:
                accounting.enter("guardrail_out")
            await attempt.finish()
            accounting.enter("serialise")
        if attempt.blocked_by is not None:
            self._record_stream(attempt, reader)
            accounting.entry.finish = "blocked"
            return None
        if self.stream is None:
            self._record_lost_stream(attempt, reader)
            self._raise_if_ended()
            return aborted()
        self._record_stream(attempt, reader)
        if failed is None:
            self._record_served(attempt, succeeded=not reader.failed)
            return None
        # The head has been sent, so report the failure with an event in the stream.
        self._app.cooldowns.failed(attempt.target, failed, perf_counter())
        refusal = shutting_down() if self._shutting_down else failed.refusal
        kind = refusal.type if self._shutting_down or failed.error == "timeout" else "stream_aborted"
        accounting.entry.attempts[-1].error = "timeout" if failed.error == "timeout" else "aborted"
        accounting.record_failure(refusal.status, kind, "cut")
        self.stream.send(error_event(self.route, attempt, reader, kind))
        return None

    def _record_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> None:
        self.accounting.record_stream(attempt.target, reader, self._request.data)
        if attempt.guard is not None:
            self.accounting.entry.guardrails += attempt.guard.hits

    def _record_lost_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> None:
        """Record a stream of which the caller got nothing: the provider bills what was held back all the same."""
        if reader.events:
            self._record_stream(attempt, reader)

    def send_error_event(self, kind: str) -> None:
        """Tell the caller in its stream that the gateway failed."""
        attempt = self._attempt
        if self.stream is not None and attempt is not None and attempt.reader is not None:
            self.stream.send(error_event(self.route, attempt, attempt.reader, kind))

    # -- timers and disconnects ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        attempt = self._attempt
        if attempt is not None and now >= attempt.due:
            attempt.tick(now)

    def end(self) -> None:
        """End the request: the drain time is over."""
        self._shutting_down = True
        self._stop(SHUTTING_DOWN)

    def watch(self) -> None:
        """Start to watch for the caller's disconnect."""
        if not self._watching_caller:
            self._watching_caller = True
            self._response.protocol.client_disconnect().add_done_callback(_DisconnectCallback(self))

    def _on_disconnect(self) -> None:
        if not self.caller_gone:
            self.caller_gone = True
            if self._attempt is None or self._attempt.blocked_by is None:
                self._stop(CALLER_GONE)

    def _stop(self, error: WireError) -> None:
        if self._backoff is not None:
            _wake(self._backoff)
        elif self._attempt is not None:
            self._attempt.abort(error)


class _DisconnectCallback:
    """Reports the caller's disconnect. Holds a weak reference, because Granian keeps its callbacks alive."""

    __slots__ = ("_loop",)

    def __init__(self, attempt_loop: AttemptLoop) -> None:
        self._loop = weakref.ref(attempt_loop)

    def __call__(self, _watch: object) -> None:
        attempt_loop = self._loop()
        if attempt_loop is not None:
            attempt_loop._on_disconnect()


def _wake(backoff: asyncio.Future[None]) -> None:
    if not backoff.done():
        backoff.set_result(None)
