"""One request, from its arrival to its ledger entry. The order of the steps is part of the contract:

    authenticate ─▶ check key limits, take slot ─▶ read ─▶ authorize ─▶ check tokens ─▶ inspect input ─▶ reserve
                 ─▶ route ─▶ upstream ─▶ inspect output ─▶ account

The checks before `reserve` take nothing but the slot, so a blocked request costs no other limit. Each step can end the
request with a `Refusal`. Exactly one entry is written, however the request ends. `GatewayRequest` has the steps and the
accounting; an `UpstreamAttempt` has the bytes of one exchange with an upstream. Details of the steps are in `body_reader`,
`quota`, `inspections` and `response`.
"""

from __future__ import annotations

import asyncio
import traceback
from time import perf_counter

import orjson
from aiohttp import web
from multidict import CIMultiDictProxy

from penstock.gateway.auth import (
    address_refused,
    allows_address,
    authenticate,
    authorize,
    client_ip,
    recorded_model_name,
)
from penstock.gateway.dialects.base import Dialect, Reply, StreamReader
from penstock.gateway.guardrails import ContentPolicy, StreamBlocked
from penstock.gateway.inbound.connection import connection_of
from penstock.gateway.json_edits import TooComplexError
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.outbound.response import CallerResponse, ResponseStream
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.accounting import Accounting, AttemptKind
from penstock.gateway.relay.body import Request, edit_body, read_body, too_complex
from penstock.gateway.relay.body_reader import BodyReader, CallerGoneError
from penstock.gateway.relay.compiled_snapshot import CompiledSnapshot
from penstock.gateway.relay.context import WorkerContext
from penstock.gateway.relay.inspections import inspect_input, inspect_output, inspect_refusal
from penstock.gateway.relay.large_bodies import (
    is_large,
    is_large_reply,
    large_message,
    read_large_body,
    read_large_reply,
)
from penstock.gateway.relay.model_names import restore_model
from penstock.gateway.relay.quota import Quota
from penstock.gateway.relay.replies import (
    JSON,
    blocked,
    body_timeout,
    content_type,
    never_fits,
    shutting_down,
    unknown_reference,
    upstream_request_id,
)
from penstock.gateway.relay.response_ids import ResponseOwner
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
from penstock.gateway.resources.snapshot import CallerKey, Model
from penstock.gateway.token_estimate import estimate_tokens
from penstock.wire.exchange import WireError

__all__ = ["CallerGoneError", "GatewayRequest"]

LARGE_REPLY_BYTES = 1 << 18
"""A larger reply is sent in pieces, because the server would hold what the caller does not read, without a time limit."""
PIECE_BYTES = 1 << 16
_INCOMPLETE = "The stream ended before it was complete."


class GatewayRequest:
    """A request to one of the routes that lead to an upstream."""

    __slots__ = (
        "_attempt",
        "_backoff",
        "_body",
        "_compiled",
        "_connection",
        "_context",
        "_guards",
        "_headers",
        "_input_tokens",
        "_model",
        "_quota",
        "_request",
        "_reserved_output",
        "_response",
        "_shutting_down",
        "accounting",
        "caller_gone",
        "dialect",
        "request_id",
    )

    def __init__(
        self,
        context: WorkerContext,
        compiled: CompiledSnapshot,
        request: web.BaseRequest,
        dialect: Dialect,
        request_id: str,
        ledger_id: str,
    ) -> None:
        self.accounting = Accounting(ledger_id, dialect, context.worker)
        self._context = context
        self._compiled = compiled
        self._connection = connection_of(request)
        self._headers: CIMultiDictProxy[str] = request.headers
        self._response = CallerResponse(context.common_headers, request, dialect.id_headers, request_id)
        self.dialect = dialect
        self.request_id = request_id
        self.caller_gone = False
        self._shutting_down = False
        """True once the drain time is over."""
        self._body = BodyReader(context, request)
        self._quota = Quota(context.limiter)
        self._request: Request
        self._model: Model
        self._guards: ContentPolicy | None = None
        self._input_tokens = self._reserved_output = 0
        """Estimated tokens of the request, and of the longest reply."""
        self._attempt: UpstreamAttempt | None = None
        self._backoff: asyncio.Future[None] | None = None

    async def run(self) -> bool:
        """Serve the request. Return whether its connection can carry another one."""
        self._connection.on_disconnect = self._on_disconnect
        try:
            await self._serve()
        except Refusal as refusal:
            await self._settle()
            self._refuse(refusal)
        except CallerGoneError:
            self._record_disconnect()
        except asyncio.CancelledError:
            if self.caller_gone:
                self._record_disconnect()
            else:
                self._refuse(shutting_down() if self._shutting_down else body_timeout())
        except Exception as error:
            self._report_internal_error(error)
        finally:
            self._connection.on_disconnect = None
            await self._account()
        return self._response.keeps_alive

    async def _serve(self) -> None:
        key = self._authenticate()
        if self._quota.applies(key, self._compiled.snapshot):
            await self._enter(key)
        await self._read()
        targets = self._authorize(key)
        if references := self._request.references:
            targets = await self._check_references(key, targets, references)
        self._estimate_tokens()
        limited = self._quota.applies(key, self._compiled.snapshot, self._model)
        if limited:
            self._check_fits(key)
        guards = self._guards
        if guards is not None and guards.has_input:
            if limited:
                await self._check_tokens(key)
            default_output = self._context.default_output
            self._request = await inspect_input(guards, self._request, self.dialect, default_output, self.accounting)
        self.accounting.enter("quota")
        if limited:
            await self._reserve(key)
        self._context.recorder.live.begin(self.accounting.entry, self._input_tokens)
        if self._shutting_down:
            raise shutting_down()
        await self._route(targets)

    # -- authenticate -------------------------------------------------------------------------------------------------

    def _authenticate(self) -> CallerKey:
        context, entry = self._context, self.accounting.entry
        headers = self._headers
        self._body.check_length()
        peer = self._connection.address
        if context.trusted:
            forwarded_for = ",".join(headers.getall("x-forwarded-for", []))
            entry.client = client_ip(peer, forwarded_for, context.trusted) or peer
        else:
            entry.client = peer
        key = authenticate(headers, self._compiled.snapshot, entry)
        if self._shutting_down:
            raise shutting_down()
        return key

    # -- check key limits, take slot ----------------------------------------------------------------------------------

    async def _enter(self, key: CallerKey) -> None:
        """Take the slot before the body is read, so that bodies which are still arriving hold theirs."""
        await self._quota.enter(key, self._compiled.snapshot)
        self._response.set_headers(self._quota.headers)
        if self._shutting_down:
            raise shutting_down()

    # -- read ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        self.accounting.enter("receive")
        data = await self._body.read()
        self.accounting.entry.bytes_in = len(data)
        self.accounting.enter("auth")
        default_output = self._context.default_output
        if is_large(data):
            self._request = await read_large_body(data, self.dialect, default_output)
        else:
            self._request = read_body(data, self.dialect, default_output)

    # -- authorize ----------------------------------------------------------------------------------------------------

    def _authorize(self, key: CallerKey) -> tuple[Target, ...]:
        """Return the targets that can serve the model of the request."""
        entry, snapshot, request = self.accounting.entry, self._compiled.snapshot, self._request
        entry.stream = request.stream
        entry.model = recorded_model_name(request.model, self._headers, snapshot)
        model = self._model = authorize(key, request.model, snapshot, entry.client)
        entry.provider = model.provider
        self._guards = self._compiled.guards_for(key, model)
        targets = self._compiled.targets(model, self.dialect)
        if model.routing is None:
            return targets
        allowed = tuple(target for target in targets if allows_address(target.model, entry.client))
        if not allowed:
            raise address_refused(model)
        return allowed

    async def _check_references(
        self, key: CallerKey, targets: tuple[Target, ...], references: list[tuple[str, str]]
    ) -> tuple[Target, ...]:
        """Check that the stored replies which a request refers to are the caller's, and keep the targets that have them."""
        for param, reply_id in references:
            owner = await self._owner_of(reply_id)
            if owner is None and self._context.config.responses.foreign_ids == "allow":
                continue
            if owner is not None and owner.key_id == key.id:
                targets = tuple(target for target in targets if target.key.id == owner.account)
            if owner is None or owner.key_id != key.id or not targets:
                raise unknown_reference(param)
        return targets

    async def _owner_of(self, reply_id: str) -> ResponseOwner | None:
        """Look up who made a reply, unless the caller leaves meanwhile."""
        lookup = asyncio.ensure_future(self._context.response_ids.owner(reply_id))
        ended = self._backoff = self._context.loop.create_future()
        try:
            await asyncio.wait((lookup, ended), return_when=asyncio.FIRST_COMPLETED)
            self._raise_if_ended()
            return await lookup
        finally:
            self._backoff = None
            lookup.cancel()

    # -- check tokens -------------------------------------------------------------------------------------------------

    def _estimate_tokens(self) -> None:
        request, media, limits = self._request, self._request.media, self._context.config.limits
        self.accounting.media_tokens = media_tokens = (
            media.images * limits.image_tokens + media.audio * limits.audio_tokens + media.files * limits.file_tokens
        )
        self._input_tokens = estimate_tokens(len(request.data) - media.encoded_bytes) + media_tokens
        self._reserved_output = request.output_limit
        self._quota.tokens = self._input_tokens + self._reserved_output

    def _check_fits(self, key: CallerKey) -> None:
        """Refuse a request that needs more tokens than its key may use in a minute, whenever it is sent. Images, audio and
        files count in the reservation, but not here: their tokens are not known."""
        request, limit = self._request, key.rate_limit.tpm
        if limit is None or self._quota.tokens <= limit:
            return
        known = request.input_tokens
        input_tokens = self.dialect.input_tokens(request.data) if known is None else known
        if (needed := input_tokens + request.asked_output) > limit:
            raise never_fits(needed, limit)

    async def _check_tokens(self, key: CallerKey) -> None:
        """Refuse a request that exceeds a limit before it is inspected. Without an inspection, `reserve` follows at once."""
        self.accounting.enter("quota")
        await self._quota.check(key, self._model, self._compiled.snapshot)

    # -- reserve ------------------------------------------------------------------------------------------------------

    async def _reserve(self, key: CallerKey) -> None:
        await self._quota.reserve(key, self._model, self._compiled.snapshot)
        self._response.set_headers(self._quota.headers)

    # -- route: try one target after the other until one has served the request ---------------------------------------

    async def _route(self, targets: tuple[Target, ...]) -> None:
        """Return when the request has been served, even with a failed reply. Raise Refusal or CallerGoneError otherwise."""
        context, model = self._context, self._model
        candidates = targets
        if model.routing is not None:
            candidates = order_targets(
                model, model.routing, targets, context.cooldowns, context.round_robin, perf_counter()
            )
        failure: UpstreamFailure | None = None
        kind: AttemptKind = "initial"
        for number, target in enumerate(candidates, 1):
            retries = 0
            while True:
                failure = await self._try_target(target, kind)
                if failure is None:
                    return
                policy = FailurePolicy(model.routing, context.config.upstream.retries)
                if not policy.allows_retry(target.model, failure, retries, number < len(candidates)):
                    break
                await self._sleep(backoff_s(retries, failure))
                retries += 1
                kind = "retry"
            context.cooldowns.failed(target, failure, perf_counter(), targets)
            if not policy.allows_fallback(failure):
                break
            kind = "fallback"
        assert failure is not None
        if failure.quotes_upstream and self._guards is not None and self._guards.has_output:
            await inspect_refusal(self._guards, self.dialect, failure.refusal, self.accounting)
        raise failure.refusal

    async def _try_target(self, target: Target, kind: AttemptKind) -> UpstreamFailure | None:
        """Return None if the request was answered, or the failure if another attempt may still serve it."""
        accounting, direct = self.accounting, target.model
        self._raise_if_ended()
        if self._model.routing is not None:
            try:
                await self._quota.reserve_target(direct)
            except Refusal as refusal:
                accounting.skip_over_limit(target, kind)
                return UpstreamFailure("over_limit", None, refusal, retryable=True)
            self._raise_if_ended()  # the caller may have left while the limiter was asked
        accounting.entry.upstream_model, accounting.entry.provider = direct.upstream, direct.provider
        message = await self._large_message(target) if self._request.is_large else self._message(target)
        accounting.enter("upstream")
        record = accounting.begin_attempt(target, kind)
        attempt = self._attempt = self._start_attempt(target, message)
        await attempt.run()
        accounting.end_attempt(record, attempt.exchange, attempt.guard_s)
        record.upstream_request_id = upstream_request_id(attempt.headers, target)
        reader = attempt.reader
        failure = await (self._finish_whole_reply(attempt) if reader is None else self._finish_stream(attempt, reader))
        if failure is not None:
            record.error = failure.error
            await self._quota.settle_target(accounting.tokens)
        return failure

    def _message(self, target: Target) -> bytes:
        request = self._request
        try:
            options = self._usage_options(target)
            body = edit_body(request, target.upstream_json, options, target.renames, target.defaults)
        except TooComplexError:
            raise too_complex() from None
        return target.head(len(body), self.request_id, self._forwarded_headers(target)) + body

    async def _large_message(self, target: Target) -> bytes:
        try:
            forwarded = self._forwarded_headers(target)
            message = await large_message(
                self._request, target, self._usage_options(target), self.request_id, forwarded
            )
        except TooComplexError:
            raise too_complex() from None
        self._raise_if_ended()
        return message

    def _forwarded_headers(self, target: Target) -> bytes:
        return target.forwarded_headers(self._headers, self.accounting.entry.api_key_id)

    def _usage_options(self, target: Target) -> bytes | None:
        """Return the `stream_options` to set, so that the stream reports its usage."""
        options = self._request.usage_options
        return None if options is None or target.sets("stream_options") else options

    def _start_attempt(self, target: Target, message: bytes) -> UpstreamAttempt:
        request, model, dialect = self._request, self._model, self.dialect
        strips_usage = self._usage_options(target) is not None
        timeouts = self._compiled.timeouts(target, model, request.stream)
        attempt = UpstreamAttempt(self._context.loop, self, target, message, timeouts)
        alias = model.name if dialect.restores_model else None
        guards = self._guards
        if guards is not None or alias is not None or strips_usage:
            attempt.prepare(guards, alias, strips_usage=strips_usage)
        return attempt

    async def _sleep(self, seconds: float) -> None:
        self.accounting.enter("backoff")
        backoff = self._backoff = self._context.loop.create_future()
        timer = self._context.loop.call_later(seconds, _wake, backoff)
        await backoff
        timer.cancel()
        self._backoff = None
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self.caller_gone:
            raise CallerGoneError
        if self._shutting_down:
            raise shutting_down()

    # -- upstream: whole replies --------------------------------------------------------------------------------------

    async def _finish_whole_reply(self, attempt: UpstreamAttempt) -> UpstreamFailure | None:
        exchange, accounting, target, guards = attempt.exchange, self.accounting, attempt.target, self._guards
        if exchange.error is not None or not 200 <= exchange.status < 300:
            if self._may_be_billed(attempt):
                accounting.add_estimated_usage(self._request, self._reserved_output)
            self._raise_if_ended()
            self._pass_upstream_id(attempt)
            return failure_of(exchange, attempt.headers, target, attempt.elapsed_ms)
        try:
            if is_large_reply(exchange, attempt.headers):
                body, reply = await read_large_reply(exchange, attempt.headers, self.dialect)
            else:
                body = plain_body(exchange, attempt.headers)
                reply = self.dialect.read_reply(body)
        except ValueError:
            accounting.add_estimated_usage(self._request, self._reserved_output)
            return undecodable()
        reply_id = reply.name
        accounting.identify(target, reply_id, reply.finish)
        if reply_id is not None and self.dialect.stores_replies:
            self.bind_reply(reply_id, target)
        self._record_usage(reply, body)
        self._raise_if_ended()
        try:
            if guards is not None and guards.has_output:
                body = await inspect_output(guards, self.dialect, body, accounting)
        except Refusal:
            self._forbid_reply(reply_id, target)
            raise
        except ValueError:  # the guardrails' parser is stricter than `read_reply`
            return undecodable()
        if self.dialect.restores_model:
            body = restore_model(body, bytes(reply.model), orjson.dumps(self._model.name))
        self._name_server(attempt)
        self._record_served(attempt, succeeded=not reply.failed)
        kind = content_type(attempt.headers, "application/json")
        if len(body) <= LARGE_REPLY_BYTES:
            await self._settle()
            self._send(exchange.status, kind, body)
            accounting.entry.ttft_ms = accounting.entry.phases_ms["total"]
        else:
            await self._send_in_pieces(exchange.status, kind, body)
        return None

    def _may_be_billed(self, attempt: UpstreamAttempt) -> bool:
        """Return whether the provider may bill an exchange that failed: it began to answer, or it received the whole
        request and the gateway or the caller gave up."""
        status = attempt.exchange.status
        gave_up = self.caller_gone or self._shutting_down
        return 200 <= status < 300 or (gave_up and not status and attempt.exchange.sent >= 0)

    def _record_usage(self, reply: Reply, body: bytes) -> None:
        usage = reply.reported
        if usage is not None:
            self.accounting.add_usage(usage)
        elif reply.unfinished:  # a background response: its usage will never be seen here
            self.accounting.add_estimated_usage(self._request, self._reserved_output)
        else:
            self.accounting.add_estimated_usage(self._request, self.dialect.output_tokens(body))

    def _record_served(self, attempt: UpstreamAttempt, *, succeeded: bool) -> None:
        """Record the status; only a successful reply clears the cooldown."""
        self.accounting.entry.status = attempt.exchange.status
        if succeeded:
            self._context.cooldowns.succeeded(attempt.target)
        else:
            self.accounting.record_failed_reply()

    # -- upstream: streams, which the attempt relays as they arrive ---------------------------------------------------

    @property
    def stream(self) -> ResponseStream | None:
        return self._response.stream

    def begin_stream(self, attempt: UpstreamAttempt) -> ResponseStream:
        """Send the head of the stream, before its first bytes."""
        self._name_server(attempt)
        return self._response.begin_stream(
            attempt.exchange.status,
            self.accounting.phases_at_first_byte(attempt.exchange, attempt.guard_s),
            content_type(attempt.headers, "text/event-stream"),
            ("cache-control", "no-cache"),
        )

    def bind_reply(self, reply_id: str, target: Target) -> None:
        """Record who made a reply, before its first bytes are sent. An id that contains a secret is not recorded."""
        self._record_reply(reply_id, target, self.accounting.entry.api_key_id)

    def _forbid_reply(self, reply_id: str | None, target: Target) -> None:
        """Make the id of a blocked reply unusable for all callers: the provider may have stored the reply."""
        if self.dialect.stores_replies and reply_id is not None:
            self._record_reply(reply_id, target, "")

    def _record_reply(self, reply_id: str, target: Target, key_id: str) -> None:
        if target.redact(reply_id) == reply_id:
            owner = ResponseOwner(key_id, target.key.id, self._model.name)
            self._context.response_ids.record(reply_id, owner, self.accounting.entry.at)

    def block(self, attempt: UpstreamAttempt, cause: StreamBlocked) -> None:
        """Tell the caller about a block: with a status, or with an event if the stream has begun."""
        entry = self.accounting.entry
        refusal = blocked("response", cause.guardrail, timed_out=cause.timed_out, too_long=cause.too_long)
        entry.blocked = True
        entry.status, entry.error = refusal.status, refusal.type
        self._forbid_reply(attempt.reader.id if attempt.reader is not None else None, attempt.target)
        if self.stream is None:
            self.accounting.record_time(attempt.exchange, attempt.guard_s)
            self._send(refusal.status, JSON, self.dialect.error_body(refusal))
        else:
            assert attempt.guard is not None
            self.stream.send(attempt.guard.block_event(cause))
            self.stream.close()

    async def _finish_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> UpstreamFailure | None:
        exchange, accounting = attempt.exchange, self.accounting
        if self.caller_gone and not attempt.complete and attempt.blocked_by is None:
            self._record_stream(attempt, reader)
            if self.stream is not None and self.stream.full:  # the caller may read on later: tell it the end is missing
                self._send_error_event(attempt, reader, "stream_aborted")
            raise CallerGoneError
        failed: UpstreamFailure | None = None
        if attempt.blocked_by is None:
            attempt.read_rest()
            if exchange.error is not None and not attempt.complete:
                failed = failure_of(exchange, attempt.headers, attempt.target, attempt.elapsed_ms)
                if self.stream is None and not self._shutting_down:
                    self._record_lost_stream(attempt, reader)
                    return failed
            elif attempt.lacks_end:
                failed = aborted()
            if attempt.guard is not None:
                accounting.enter("guardrail_out")
            rest = await attempt.inspect_rest()
            if failed is None or self.stream is not None or self._shutting_down:
                attempt.send_rest(rest)
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
        else:
            self._report_cut_stream(attempt, reader, failed)
        return None

    def _report_cut_stream(self, attempt: UpstreamAttempt, reader: StreamReader, failed: UpstreamFailure) -> None:
        """Report a failure with an event in the stream, whose head has been sent."""
        if not self._shutting_down:
            targets = self._compiled.targets(self._model, self.dialect)
            self._context.cooldowns.failed(attempt.target, failed, perf_counter(), targets)
        refusal = shutting_down() if self._shutting_down else failed.refusal
        kind = refusal.type if self._shutting_down or failed.error == "timeout" else "stream_aborted"
        self.accounting.entry.attempts[-1].error = "timeout" if failed.error == "timeout" else "aborted"
        self.accounting.record_failure(refusal.status, kind, "cut")
        self._send_error_event(attempt, reader, kind)

    def _record_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> None:
        self.accounting.record_stream(attempt.target, reader, self._request)
        if attempt.guard is not None:
            self.accounting.entry.guardrails += attempt.guard.hits

    def _record_lost_stream(self, attempt: UpstreamAttempt, reader: StreamReader) -> None:
        """Record a stream of which the caller got nothing: the provider also bills what was held back."""
        if reader.events:
            self._record_stream(attempt, reader)

    def _send_error_event(self, attempt: UpstreamAttempt, reader: StreamReader, kind: str) -> None:
        assert self.stream is not None
        lead = b"\n\n" if attempt.mid_event else b""
        self.stream.send(lead + self.dialect.error_event(kind, _INCOMPLETE, reader.sequence + 1))

    # -- the response -------------------------------------------------------------------------------------------------

    def _send(self, status: int, kind: tuple[str, str], body: bytes, *more: tuple[str, str]) -> None:
        self.accounting.entry.bytes_out = len(body)
        self._response.send(status, body, self.accounting.phases_at_head(), kind, *more)

    async def _send_in_pieces(self, status: int, kind: tuple[str, str], body: bytes) -> None:
        """Send a large reply as fast as the caller reads it. One that does not read for `stream_timeout_s` is gone."""
        phases = self.accounting.phases_at_head()
        self.accounting.entry.ttft_ms = phases["total"]
        stream = self._response.begin_stream(status, phases, kind, length=len(body))
        timeout = self._context.config.upstream.stream_timeout_s or None
        for start in range(0, len(body), PIECE_BYTES):
            stream.send(body[start : start + PIECE_BYTES])
            if stream.full and not await self._is_writable(stream, timeout):
                self.caller_gone = not self._shutting_down
            if stream.closed or self.caller_gone:
                raise CallerGoneError
            if self._shutting_down:
                self.accounting.record_failure(503, shutting_down().type, "cut")
                return

    async def _is_writable(self, stream: ResponseStream, timeout_s: float | None) -> bool:
        """Wait until the caller has read on; return False if it has not within the timeout, or if the gateway ends."""
        waiting = self._backoff = self._context.loop.create_future()
        stream.wait_until_writable(lambda: _wake(waiting))
        try:
            await asyncio.wait_for(waiting, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._backoff = None
        return not stream.full

    def _refuse(self, refusal: Refusal) -> None:
        self.accounting.record_failure(refusal.status, refusal.type)
        self.accounting.entry.limited_by = refusal.limited_by
        more = list(refusal.headers)
        if refusal.retry_after is not None:
            more.append(("retry-after", str(refusal.retry_after)))
        self._send(refusal.status, JSON, self.dialect.error_body(refusal), *more)

    def _name_server(self, attempt: UpstreamAttempt) -> None:
        """Tell the caller the upstream's request id, and the model of a group that served the request."""
        self._pass_upstream_id(attempt)
        served_by = attempt.target.model.name
        if served_by != self.accounting.entry.model:
            self._response.set_header("x-penstock-served-by", served_by)

    def _pass_upstream_id(self, attempt: UpstreamAttempt) -> None:
        upstream_id = upstream_request_id(attempt.headers, attempt.target)
        if upstream_id is not None:
            self._response.set_header("x-upstream-request-id", upstream_id)

    # -- account ------------------------------------------------------------------------------------------------------

    async def _account(self) -> None:
        """Write the ledger entry, settle the limits and end the stream."""
        stream = self._response.stream
        if stream is not None:
            self.accounting.entry.bytes_out = stream.sent
        self._context.recorder.record(self.accounting.close())
        self._body.release()
        self._attempt = None  # breaks a reference cycle
        await self._settle()
        if stream is not None:
            stream.close()

    async def _settle(self) -> None:
        """Replace the reservations by what was used. Call this before the reply ends: the caller may send its next request
        at once, perhaps to another worker, and needs the slot for it. A second call does nothing."""
        if self._quota.used:
            await self._quota.settle(self.accounting.tokens)

    def _record_disconnect(self) -> None:
        self.accounting.record_failure(499, "client_disconnected", "disconnected")

    def _report_internal_error(self, error: BaseException) -> None:
        """Send a bare 500, and log where the exception was raised. Its message is not logged: it may quote the request."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log_operator_message(
            f"internal error in request {self.request_id}: {type(error).__name__} in {frame.name} "
            f"({frame.filename}:{frame.lineno})",
            "error",
        )
        refusal = Refusal(500, "internal_error", "The gateway failed with an internal error; its log has the details.")
        if self.stream is None:
            self._refuse(refusal)
            return
        self.accounting.record_failure(500, refusal.type, "cut")
        attempt = self._attempt
        if attempt is not None and attempt.reader is not None:
            self._send_error_event(attempt, attempt.reader, refusal.type)

    # -- timers and disconnects ---------------------------------------------------------------------------------------

    def tick(self, now: float, receive_s: float) -> None:
        """Check timeouts. Called ten times a second."""
        self._connection.check_disconnect()
        attempt = self._attempt
        if attempt is not None:
            if now >= attempt.due:
                attempt.tick(now)
        elif self._body.waiting and self.accounting.elapsed_s > receive_s:
            self._body.cancel()

    def end(self) -> None:
        """End the request: the drain time is over."""
        self._shutting_down = True
        self._stop(SHUTTING_DOWN)

    def _on_disconnect(self) -> None:
        if not self.caller_gone:
            self.caller_gone = True
            if self._attempt is None or self._attempt.blocked_by is None:
                self._stop(CALLER_GONE)

    def _stop(self, error: WireError) -> None:
        """Wake the request wherever it waits."""
        if self._backoff is not None:
            _wake(self._backoff)
        elif self._attempt is not None:
            self._attempt.abort(error)
        else:
            self._body.cancel()


def _wake(backoff: asyncio.Future[None]) -> None:
    if not backoff.done():
        backoff.set_result(None)
