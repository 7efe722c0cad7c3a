"""The upstream's part of a request: one target after the other until one of them has served it, and how that ended.

order ─▶ attempt ─┬─▶ whole reply ─▶ output guardrails ─▶ answer
   ▲              ├─▶ stream, relayed as it comes ─▶ its end is judged
   └── failure ◀──┘
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
from penstock.gateway.relay.routing import Rules, backoff_s, order
from penstock.gateway.relay.upstream import GONE, Target, UpstreamFailure, aborted, failure_of, plain_body, undecodable
from penstock.gateway.relay.upstream_attempt import ENDED, UpstreamAttempt
from penstock.gateway.relay.usage import StreamReader, read_reply, text_tokens
from penstock.gateway.resources.snapshot import Model
from penstock.gateway.routes import Route
from penstock.gateway.serving.compiled_snapshot import CompiledSnapshot
from penstock.wire.exchange import WireError

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["AttemptLoop", "CallerGoneError"]


class CallerGoneError(Exception):
    """There is nobody left to answer."""


class AttemptLoop:
    """Owns the `UpstreamAttempt` of the attempt that is made."""

    __slots__ = (
        "__weakref__",
        "_app",
        "_caller",
        "_counted",
        "_ended",
        "_forward",
        "_live",
        "_model",
        "_request",
        "_reservation",
        "_sleeper",
        "_tokens",
        "_watched",
        "books",
        "gone",
        "route",
    )

    def __init__(
        self,
        app: App,
        live: CompiledSnapshot,
        caller: CallerResponse,
        route: Route,
        model: Model,
        request: Request,
        tokens: int,
    ) -> None:
        """`tokens` is what the request was estimated at."""
        self._app = app
        self._live = live
        self._caller = caller
        self.books = caller.books
        self.route = route
        self._model = model
        self._request = request
        self._tokens = tokens
        self._forward: UpstreamAttempt | None = None
        self._reservation: Reservation | None = None
        """With the limits of the target."""
        self._counted = 0
        """Tokens that the attempts before this one came to."""
        self._sleeper: asyncio.Future[None] | None = None
        self.gone = False
        self._watched = False
        self._ended = False
        """By us: the drain's time is over."""

    @property
    def outlet(self) -> ResponseStream | None:
        return self._caller.outlet

    async def run(self, targets: tuple[Target, ...]) -> None:
        """Returns when the request has been served, well or not; raises a Refusal, or CallerGoneError."""
        app, model = self._app, self._model
        candidates = targets
        if model.routing is not None:
            candidates = order(model, model.routing, targets, app.cooldowns, app.turns, perf_counter())
        failure: UpstreamFailure | None = None
        kind: AttemptKind = "initial"
        for number, target in enumerate(candidates, 1):
            retries = 0
            while True:
                failure = await self._attempt(target, kind)
                if failure is None:
                    return
                rules = Rules(model.routing, app.config.upstream.retries)
                app.cooldowns.failed(target, failure, perf_counter())
                if not rules.tries_again(target.model, failure, retries, number < len(candidates)):
                    break
                await self._sleep(backoff_s(retries, failure))
                retries += 1
                kind = "retry"
            if not rules.moves_on(failure):
                break
            kind = "fallback"
        assert failure is not None
        if failure.quotes:
            await self._inspect_refusal(failure.refusal)
        raise failure.refusal

    async def close(self) -> None:
        self._forward = None  # it holds us
        await self._settle()

    async def _attempt(self, target: Target, kind: AttemptKind) -> UpstreamFailure | None:
        """Return None when the request was answered, or the failure when another attempt may still serve it."""
        app, books, model, request = self._app, self.books, self._model, self._request
        direct = target.model
        self._check()
        if model.routing is not None:
            try:
                self._reservation = await app.limiter.admit_target(direct, self._tokens, time())
            except Refusal as refusal:
                books.over_limit(target, kind)
                return UpstreamFailure("over_limit", None, refusal, retryable=True)
            self._check()  # asking takes a while where the limits are another machine's
        books.entry.upstream_model, books.entry.provider = direct.upstream, direct.provider
        books.enter("upstream")
        attempt = books.attempt(target, kind)
        message = target.message(replace_model(request, target.upstream_json), self._caller.request_id)
        limits = self._live.limits(target, model, request.stream)
        forward = self._forward = UpstreamAttempt(app.loop, self, target, message, limits)
        guards = self._live.guards
        if self.route == "chat" or guards is not None:
            forward.prepare(guards, model.name if self.route == "chat" else None)
        await forward.run()
        books.ended(attempt, forward.exchange, forward.guard_s)
        reader = forward.reader
        failure = await (self._end_whole(forward) if reader is None else self._end_stream(forward, reader))
        if failure is not None:
            attempt.error = failure.error
            await self._settle()
        return failure

    def _served(self, forward: UpstreamAttempt, *, well: bool) -> None:
        """The caller gets what the upstream said, be it that it failed: then it is not known to be well again."""
        self.books.entry.status = forward.exchange.status
        if well:
            self._app.cooldowns.succeeded(forward.target)
        else:
            self.books.failed_within()

    async def _settle(self) -> None:
        """The target is charged with what its own attempt came to."""
        spent, self._counted = self.books.tokens - self._counted, self.books.tokens
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            await self._app.limiter.settle(reservation, spent, time())

    async def _sleep(self, seconds: float) -> None:
        self.watch()
        sleeper = self._sleeper = self._app.loop.create_future()
        timer = self._app.loop.call_later(seconds, _wake, sleeper)
        await sleeper
        timer.cancel()
        self._sleeper = None
        self._check()

    def _check(self) -> None:
        if self.gone:
            raise CallerGoneError
        if self._ended:
            raise shutting_down()

    # -- whole replies ------------------------------------------------------------------------------------------------

    async def _end_whole(self, forward: UpstreamAttempt) -> UpstreamFailure | None:
        exchange, books, caller = forward.exchange, self.books, self._caller
        if self.gone and exchange.sent >= 0:  # of a part of a request a provider makes nothing
            books.estimate(self._request.data, 0)
        self._check()
        failure = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
        if failure is not None:
            caller.note_upstream(forward)
            return failure
        try:
            body = plain_body(exchange, forward.headers)
            reply = read_reply(body)
        except ValueError:
            return undecodable()
        entry = books.entry
        books.identify(forward.target, reply.name, reply.finish)
        usage = reply.reported
        if usage is not None:
            books.report(usage)
        else:
            books.estimate(self._request.data, 0 if self.route == "embeddings" else text_tokens(body))
        guards = self._live.guards
        if guards is not None and guards.has_output:
            books.enter("guardrail_out")
            try:
                body = await self._inspect(guards, body)
            except ValueError:  # it is stricter than the reading above
                return undecodable()
            books.enter("serialise")
        if self.route == "chat":
            body = restore_model(body, bytes(reply.model), orjson.dumps(self._model.name))
        caller.note_upstream(forward)
        caller.note_target(forward.target)
        self._served(forward, well=not reply.failed)
        caller.answer(exchange.status, content_type(forward, "application/json"), body)
        entry.ttft_ms = entry.phases_ms["total"]
        return None

    async def _inspect(self, guards: Guards, body: bytes) -> bytes:
        found = await guards.run_inspection(len(body), lambda budgets: guards.reply(body, budgets))
        self.books.inspected(found)
        if found.blocked_by is not None:
            raise blocked("response", found.blocked_by, timed_out=found.timed_out)
        return found.body

    async def _inspect_refusal(self, refusal: Refusal) -> None:
        """An upstream's own words are a reply as well: they may quote what it was sent, or what it was about to say."""
        guards = self._live.guards
        if guards is None or not guards.has_output:
            return
        self.books.enter("guardrail_out")
        error = orjson.loads(await self._inspect(guards, refusal.body()))["error"]
        refusal.message, refusal.code, refusal.param = error["message"], error.get("code"), error.get("param")

    # -- streams ------------------------------------------------------------------------------------------------------

    def commit(self, forward: UpstreamAttempt) -> ResponseStream:
        """The first piece of a stream is about to leave."""
        return self._caller.begin_stream(forward)

    def block(self, forward: UpstreamAttempt, by: StreamBlocked) -> None:
        entry = self.books.entry
        refusal = blocked("response", by.guardrail, timed_out=by.timed_out)
        entry.blocked = True
        entry.status, entry.error = refusal.status, refusal.type
        if self.outlet is None:
            self.books.note(forward.exchange, forward.guard_s)
            self._watched = True  # there is nothing to be watched behind a reply
            self._caller.answer(refusal.status, JSON, refusal.body())
        else:
            assert forward.guard is not None
            self.outlet.send(forward.guard.block_event(by))
            self.outlet.close()

    async def _end_stream(self, forward: UpstreamAttempt, reader: StreamReader) -> UpstreamFailure | None:
        exchange, books = forward.exchange, self.books
        if self.gone and not forward.complete and forward.blocked_by is None:
            self._close_stream(forward, reader)
            if self.outlet is not None and self.outlet.full:  # it may read on one day, and sees that the end is missing
                self.outlet.send(error_event(self.route, forward, reader, "stream_aborted"))
            raise CallerGoneError
        failed = None
        if forward.blocked_by is None:
            if exchange.error is not None and not forward.complete:
                failed = failure_of(exchange, forward.headers, forward.target, forward.elapsed_ms)
                if self.outlet is None and not self._ended:
                    self._lose_stream(forward, reader)
                    return failed
            if forward.guard is not None:
                books.enter("guardrail_out")
            await forward.finish()
            books.enter("serialise")
        if forward.blocked_by is not None:
            self._close_stream(forward, reader)
            books.entry.finish = "blocked"
            return None
        if self.outlet is None:
            self._lose_stream(forward, reader)
            self._check()
            return aborted()
        self._close_stream(forward, reader)
        if failed is None:
            self._served(forward, well=not reader.failed)
            return None
        # The head is gone, so the caller is told within the stream; its own reader sees that the end is missing.
        self._app.cooldowns.failed(forward.target, failed, perf_counter())
        refusal = shutting_down() if self._ended else failed.refusal
        kind = refusal.type if self._ended or failed.error == "timeout" else "stream_aborted"
        books.entry.attempts[-1].error = "timeout" if failed.error == "timeout" else "aborted"
        books.failed(refusal.status, kind, "cut")
        self.outlet.send(error_event(self.route, forward, reader, kind))
        return None

    def _close_stream(self, forward: UpstreamAttempt, reader: StreamReader) -> None:
        self.books.stream(forward.target, reader, self._request.data)
        if forward.guard is not None:
            self.books.entry.guardrails += forward.guard.hits

    def _lose_stream(self, forward: UpstreamAttempt, reader: StreamReader) -> None:
        """Nothing of it has left, and nothing will. What was held back is billed all the same."""
        if reader.events:
            self._close_stream(forward, reader)

    def break_off(self, kind: str) -> None:
        """Tell the caller in its stream that it ends here, after a fault of ours."""
        forward = self._forward
        if self.outlet is not None and forward is not None and forward.reader is not None:
            self.outlet.send(error_event(self.route, forward, forward.reader, kind))

    # -- what happens meanwhile ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        forward = self._forward
        if forward is not None and now >= forward.due:
            forward.tick(now)

    def end(self) -> None:
        """The drain's time is over."""
        self._ended = True
        self._stop(ENDED)

    def watch(self) -> None:
        """Notice when the caller goes away."""
        if not self._watched:
            self._watched = True
            self._caller.protocol.client_disconnect().add_done_callback(_Gone(self))

    def _on_gone(self) -> None:
        if not self.gone:
            self.gone = True
            if self._forward is None or self._forward.blocked_by is None:
                self._stop(GONE)

    def _stop(self, why: WireError) -> None:
        if self._sleeper is not None:
            _wake(self._sleeper)
        elif self._forward is not None:
            self._forward.abort(why)


class _Gone:
    """Tells that the caller went away. Granian keeps what it has called, so this must not keep the request."""

    __slots__ = ("_attempts",)

    def __init__(self, attempts: AttemptLoop) -> None:
        self._attempts = weakref.ref(attempts)

    def __call__(self, _watched: object) -> None:
        attempts = self._attempts()
        if attempts is not None:
            attempts._on_gone()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
