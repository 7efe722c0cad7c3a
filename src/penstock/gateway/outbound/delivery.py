"""The way back of one attempt: the list of its filters, and the record of how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.gateway.accounting import Accounting
from penstock.gateway.dialects.base import Dialect, StreamReader, WholeReplyReader
from penstock.gateway.dialects.sse_frames import Frames
from penstock.gateway.ending import CallerGoneError, Ending, shutting_down
from penstock.gateway.guardrails import Blocked, ContentPolicy
from penstock.gateway.inbound.body import ParsedBody
from penstock.gateway.memory import Holding
from penstock.gateway.outbound.chain import Filter, ReplyChain, WholeBody
from penstock.gateway.outbound.filters import BindId, Inspect, ReadUsage, Redact, RestoreModel, Send
from penstock.gateway.outbound.response import CallerResponse, ResponseStream
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import JSON, blocked, content_type, upstream_request_id
from penstock.gateway.upstream.attempt import UpstreamAttempt
from penstock.gateway.upstream.target import TIMEOUT, Target, UpstreamFailure, aborted, failure_of, undecodable

LARGE_REPLY_BYTES = 1 << 18
"""A larger whole reply is sent in pieces, as fast as the caller reads it."""
AFTER_BLOCK_S = 5.0
"""How long a blocked stream is still read for the usage at its end."""
_INCOMPLETE = "The stream ended before it was complete."


class ReplyDelivery:
    """Delivers the reply of one attempt to the caller. `receive` makes the chain, `conclude` ends it."""

    _attempt: UpstreamAttempt
    _reader: StreamReader
    _send: Send
    _chain: ReplyChain | None = None
    _is_stream = False
    _inspect: Inspect | None = None
    blocked = False
    left = False
    """True if the caller left before the end of the reply."""

    def __init__(
        self,
        dialect: Dialect,
        policy: ContentPolicy | None,
        model_name: str,
        target: Target,
        body: ParsedBody,
        response: CallerResponse,
        accounting: Accounting,
        ending: Ending,
        holding: Holding,
        bind: Callable[[str, Target, bool], None],
        settle: Callable[[], Awaitable[None]],
        *,
        strips_usage: bool,
    ) -> None:
        """`bind` records who owns a reply, or that nobody may use it. `settle` frees the slot of the request."""
        self._dialect = dialect
        self._policy = policy if policy is not None and policy.has_output else None
        self._model_name = model_name
        self._target = target
        self._body = body
        self._response = response
        self._accounting = accounting
        self._ending = ending
        self._holding = holding
        self._bind = bind
        self._settle = settle
        self._strips_usage = strips_usage

    # -- the chain ----------------------------------------------------------------------------------------------------

    def receive(self, attempt: UpstreamAttempt) -> ReplyChain:
        """Return the chain for a successful reply whose head has arrived."""
        dialect = self._dialect
        self._attempt = attempt
        kind = attempt.headers.get(b"content-type", b"")
        self._is_stream = kind.lower().startswith(b"text/event-stream")
        splitter = Frames() if self._is_stream else WholeBody()
        reader = self._reader = dialect.stream_reader() if self._is_stream else WholeReplyReader(dialect)
        self._send = Send(reader, self._begin_stream, self._send_whole, self._on_closed)
        filters: list[Filter] = [ReadUsage(reader, strips_usage=self._strips_usage)]
        if dialect.stores_replies:
            filters.append(BindId(reader, lambda reply_id: self._bind(reply_id, self._target, True)))
        if dialect.restores_model:
            filters.append(RestoreModel(dialect, self._model_name))
        filters.append(Redact(*self._target.secrets))
        if self._policy is not None:
            stream = splitter if isinstance(splitter, Frames) else None
            accounting = self._accounting
            self._inspect = Inspect(self._policy, dialect, stream, accounting.begin_phase, accounting.record_inspection)
            filters.append(self._inspect)
        filters.append(self._send)
        self._chain = ReplyChain(filters, splitter, reader, attempt, self._holding, self._on_block)
        if self.left:
            self._chain.read_only()
        return self._chain

    @property
    def guard_s(self) -> float:
        """Seconds spent on the inspection of the stream while it arrived."""
        return 0.0 if self._inspect is None else self._inspect.seconds

    @property
    def complete(self) -> bool:
        """True if the caller has been sent the whole stream."""
        return self._chain is not None and self._chain.complete

    async def settle(self) -> None:
        """Wait until no filter waits."""
        if self._chain is not None:
            await self._chain.settle()

    def leave(self) -> None:
        """Send nothing more, but read the rest of the reply: the caller has left."""
        self.left = True
        if self._chain is not None:
            self._chain.read_only()

    def stop_waiting(self) -> None:
        """Do not wait for the caller any more."""
        if self._chain is not None:
            self._send.wake()

    @property
    def full_since(self) -> float | None:
        """Since when the caller has not read; None if it reads."""
        return self._send.full_since if self._chain is not None else None

    def send_heartbeat(self, now: float) -> None:
        """Send a comment in a stream that guardrails have held for long, so that no proxy takes it for dead."""
        inspect, chain = self._inspect, self._chain
        if inspect is None or chain is None or inspect.guard is None or inspect.guard.heartbeat_s is None:
            return
        if self.blocked or self.left or self.complete or self._send.full_since is not None:
            return
        if now >= self._send.last_sent_at + inspect.guard.heartbeat_s:
            self._send.send(inspect.heartbeat(is_waiting=chain.is_waiting))

    def close(self) -> None:
        """Break the reference cycles between this object, its filters and the attempt: it cannot be used afterwards."""
        vars(self).clear()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _begin_stream(self) -> ResponseStream:
        """Send the head of the stream, before its first bytes."""
        attempt = self._attempt
        self._name_server()
        return self._response.begin_stream(
            attempt.exchange.status,
            self._accounting.phases_at_first_byte(attempt.exchange, self.guard_s),
            content_type(attempt.headers, "text/event-stream"),
            ("cache-control", "no-cache"),
        )

    async def _send_whole(self, body: bytes) -> ResponseStream | None:
        """Send a whole reply, or only its head if it has to be sent in pieces."""
        self._ending.raise_if_ended()
        attempt, accounting, response = self._attempt, self._accounting, self._response
        self._name_server()
        kind = content_type(attempt.headers, "application/json")
        status = attempt.exchange.status
        if len(body) > LARGE_REPLY_BYTES:
            phases = accounting.phases_at_head()
            accounting.entry.ttft_ms = phases["total"]
            return response.begin_stream(status, phases, kind, length=len(body))
        await self._settle()
        accounting.entry.bytes_out = len(body)
        response.send(status, body, accounting.phases_at_head(), kind)
        accounting.entry.ttft_ms = accounting.entry.phases_ms["total"]
        return None

    def _on_closed(self) -> None:
        self._ending.caller_gone = True

    def _name_server(self) -> None:
        """Tell the caller the upstream's request id, and the model of a group that served the request."""
        self._pass_upstream_id(self._attempt)
        served_by = self._target.model.name
        if served_by != self._accounting.entry.model:
            self._response.set_header("x-penstock-served-by", served_by)

    def _pass_upstream_id(self, attempt: UpstreamAttempt) -> None:
        upstream_id = upstream_request_id(attempt.headers, self._target)
        if upstream_id is not None:
            self._response.set_header("x-upstream-request-id", upstream_id)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _on_block(self, cause: Blocked) -> None:
        """Tell the caller about the block of a stream that is still arriving, and read on for its usage."""
        assert self._chain is not None
        refusal = self._record_block(cause)
        self._tell_block(cause, refusal)
        self._chain.read_only()
        self._attempt.read_on(AFTER_BLOCK_S, float("inf"))

    def _record_block(self, cause: Blocked) -> Refusal:
        self.blocked = True
        entry = self._accounting.entry
        refusal = blocked("response", cause.guardrail, timed_out=cause.timed_out, too_long=cause.too_long)
        entry.blocked = True
        entry.status, entry.error = refusal.status, refusal.type
        if self._reader.id is not None and self._dialect.stores_replies:
            self._bind(self._reader.id, self._target, False)
        return refusal

    def _tell_block(self, cause: Blocked, refusal: Refusal) -> None:
        stream = self._response.stream
        if stream is None:
            self._accounting.record_time(self._attempt.exchange, self.guard_s)
            body = self._dialect.error_body(refusal)
            self._accounting.entry.bytes_out = len(body)
            self._response.send(refusal.status, body, self._accounting.phases_at_head(), JSON)
        else:
            assert self._inspect is not None
            assert self._inspect.guard is not None
            stream.send(self._inspect.guard.block_event(cause))
            stream.close()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def conclude(self, attempt: UpstreamAttempt) -> UpstreamFailure | None:
        """Deliver what is left, and record the reply. Return None if the request was answered, or the failure if another
        attempt may still serve it. Raise Refusal, or CallerGoneError."""
        chain, exchange, accounting, ending = self._chain, attempt.exchange, self._accounting, self._ending
        failed = failure_of(exchange, attempt.headers, self._target, attempt.elapsed_ms)
        if chain is None or (failed is not None and not self._is_stream):
            if self._may_be_billed(attempt):
                accounting.add_reserved_usage(self._body, None)
            ending.raise_if_ended()
            self._pass_upstream_id(attempt)
            assert failed is not None
            return failed
        try:
            await chain.read_last()
        except ValueError:
            accounting.add_reserved_usage(self._body, None)
            return undecodable()
        if self._is_cut():
            self._record_usage(cut=True)
            self._record_hits()
            self._warn_slow_caller()
            raise CallerGoneError
        if self.blocked:
            self._record_usage(cut=True)
            self._record_hits()
            accounting.entry.finish = "blocked"
            return None
        if failed is not None and self.complete:
            failed = None
        elif failed is None and self._lacks_end():
            failed = aborted()
        timed_out = exchange.error is not None and exchange.error.type == TIMEOUT
        cut = timed_out or ending.shutting_down
        if (
            exchange.error is not None
            and failed is not None
            and self._response.stream is None
            and not ending.shutting_down
        ):
            self._record_usage(cut=cut)  # the provider also bills what was held back
            return failed
        self._record_usage(cut=cut and failed is not None)
        return await self._finish(chain, failed)

    async def _finish(self, chain: ReplyChain, failed: UpstreamFailure | None) -> UpstreamFailure | None:
        accounting = self._accounting
        if not self._is_stream:
            self._ending.raise_if_ended()
        begun = self._response.stream is not None
        try:
            await chain.finish(sends=failed is None or begun or self._ending.shutting_down)
        except Blocked as cause:
            refusal = self._record_block(cause)
            self._record_hits()
            if self._is_stream:
                accounting.entry.finish = "blocked"
            if self._response.stream is None:
                raise refusal from None
            self._tell_block(cause, refusal)
            return None
        except ValueError:  # the guardrails' parser is stricter than that of the usage
            return undecodable()
        self._record_hits()
        stream = self._response.stream
        if self._is_stream and stream is None:
            self._ending.raise_if_ended()
            return aborted()
        if stream is not None and stream.is_cut:
            if not self._ending.shutting_down:
                raise CallerGoneError
            accounting.record_failure(503, shutting_down().type, "cut")
            return None
        if failed is None:
            accounting.record_served(self._attempt.exchange.status, failed=self._reader.failed)
            return None
        return failed

    def _may_be_billed(self, attempt: UpstreamAttempt) -> bool:
        """Return whether the provider may bill a whole reply that failed: it began to answer, or it received the whole
        request and did not answer in time, or the gateway or the caller gave up."""
        status, error = attempt.exchange.status, attempt.exchange.error
        gave_up = self._ending.caller_gone or self._ending.shutting_down
        timed_out = error is not None and error.type == TIMEOUT
        return 200 <= status < 300 or ((gave_up or timed_out) and not status and attempt.was_sent)

    def _is_cut(self) -> bool:
        """Return whether the caller left before it had the whole stream."""
        if self.left:
            return True
        return self._ending.caller_gone and not self.complete and not self.blocked and self._is_stream

    def _lacks_end(self) -> bool:
        """Return whether the event that must end the stream has not arrived."""
        if not self._is_stream or self._reader.terminal:
            return False
        return not self._dialect.has_done_marker or self._target.key.stream_done_marker == "required"

    def _record_usage(self, *, cut: bool) -> None:
        """Record what the reply says. `cut` says that its end is missing because the gateway or the caller ended it."""
        self._accounting.record_reply(self._target, self._reader, self._body, cut=cut)

    def _record_hits(self) -> None:
        if self._inspect is not None and self._inspect.guard is not None:
            self._accounting.entry.guardrails += self._inspect.guard.hits

    def _warn_slow_caller(self) -> None:
        """Tell a caller that did not read that the end is missing: it may read on later."""
        stream = self._response.stream
        if stream is not None and stream.full and self._is_stream:
            self.send_error_event("stream_aborted")

    def report_cut(self, failed: UpstreamFailure) -> None:
        """Report a failure with an event in the stream, whose head has been sent."""
        is_ending = self._ending.shutting_down
        refusal = shutting_down() if is_ending else failed.refusal
        kind = refusal.type if is_ending or failed.error == "timeout" else "stream_aborted"
        self._accounting.entry.attempts[-1].error = "timeout" if failed.error == "timeout" else "aborted"
        self._accounting.record_failure(refusal.status, kind, "cut")
        self.send_error_event(kind)

    def send_error_event(self, kind: str) -> None:
        """Send the event that ends an incomplete stream."""
        stream, chain = self._response.stream, self._chain
        if stream is None or chain is None or not self._is_stream:
            return
        lead = b"\n\n" if chain.ends_within_event else b""
        stream.send(lead + self._dialect.error_event(kind, _INCOMPLETE, self._reader.sequence + 1))
