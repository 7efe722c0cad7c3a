"""One request, from its arrival to its ledger entry. The order of the steps is part of the contract:

    authenticate ─▶ check key limits, take slot ─▶ read ─▶ authorize ─▶ check tokens ─▶ inspect input ─▶ reserve
                 ─▶ route ─▶ upstream ─▶ [ chain of filters ] ─▶ account

The checks before `reserve` take nothing but the slot, so a blocked request costs no other limit. Each step can end the
request with a `Refusal`. Exactly one entry is written, however the request ends. An `UpstreamAttempt` exchanges bytes with
an upstream and feeds them to the chain of a `ReplyDelivery`, which is the way back to the caller. These two know nothing of
the request.
"""

from __future__ import annotations

import asyncio
import traceback
from time import perf_counter
from typing import Protocol

from multidict import CIMultiDictProxy

from penstock.gateway.accounting import Accounting, AttemptKind
from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.token_estimate import estimate_tokens
from penstock.gateway.ending import CallerGoneError, Ending, shutting_down
from penstock.gateway.guardrails import ContentPolicy
from penstock.gateway.inbound.auth import (
    address_refused,
    allows_address,
    authenticate,
    authorize,
    client_ip,
    recorded_model_name,
)
from penstock.gateway.inbound.body import ParsedBody, edit_body, read_body
from penstock.gateway.inbound.body_reader import BodyEndedError, BodyReader
from penstock.gateway.inbound.connection import CallerRequest
from penstock.gateway.inbound.inspections import inspect_input, inspect_refusal
from penstock.gateway.inbound.large_bodies import large_message, needs_process, read_large_body
from penstock.gateway.inbound.quota import Quota
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.memory import Holding, MemoryBudget
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.outbound.delivery import ReplyDelivery
from penstock.gateway.outbound.response import CallerResponse, CommonHeaders
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import JSON, upstream_request_id
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.snapshot import CallerKey, Model
from penstock.gateway.storage.response_ids import ResponseIds, ResponseOwner
from penstock.gateway.upstream.attempt import SHUTTING_DOWN, UpstreamAttempt
from penstock.gateway.upstream.compiled_snapshot import CompiledSnapshot
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.gateway.upstream.routing import FailurePolicy, RoundRobin, backoff_s, order_targets
from penstock.gateway.upstream.target import CALLER_GONE, Target, UpstreamFailure
from penstock.wire.exchange import WireError

READ_ON_S = 60.0
READ_ON_BYTES = 16 << 20
"""How long, and how far, a stream is read for the usage at its end after its caller has left."""


class WorkerContext(Protocol):
    """What the requests of a worker share."""

    loop: asyncio.AbstractEventLoop
    config: GatewayConfig
    worker: int
    limiter: Limiter
    recorder: Recorder
    max_body: int
    memory: MemoryBudget
    abandoned_streams: int
    """Streams that are read on although their callers have left."""
    trusted: tuple[str, ...]
    default_output: int
    common_headers: CommonHeaders
    cooldowns: Cooldowns
    round_robin: RoundRobin
    response_ids: ResponseIds


class GatewayRequest:
    """A request to one of the routes that lead to an upstream."""

    _body: ParsedBody
    _model: Model
    _policy: ContentPolicy | None = None
    _input_tokens = 0
    """Estimated tokens of the request."""
    _attempt: UpstreamAttempt | None = None
    _delivery: ReplyDelivery | None = None
    _pause: asyncio.Future[None] | None = None
    """What the request waits for between two steps; `_stop` ends it."""
    _is_abandoned = False
    """True if the stream is read on although the caller has left."""

    def __init__(
        self,
        context: WorkerContext,
        compiled: CompiledSnapshot,
        request: CallerRequest,
        dialect: Dialect,
        request_id: str,
        ledger_id: str,
    ) -> None:
        self.accounting = Accounting(ledger_id, dialect, context.worker)
        self._context = context
        self._compiled = compiled
        self._connection = request.connection
        self._headers: CIMultiDictProxy[str] = request.headers
        self._response = CallerResponse(context.common_headers, request, dialect.id_headers, request_id)
        self._dialect = dialect
        self.request_id = request_id
        self._ending = Ending()
        self._holding = Holding(context.memory)
        self._reader = BodyReader(request, self._holding, context.max_body)
        self._quota = Quota(context.limiter)

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
        except BodyEndedError:
            if self._ending.caller_gone:
                self._record_disconnect()
            else:
                timeout = Refusal(408, "timeout", "The request body did not arrive in time.")
                self._refuse(shutting_down() if self._ending.shutting_down else timeout)
        except Exception as error:
            self._report_internal_error(error)
        finally:
            self._connection.on_disconnect = None
            await self._account()
        return self._response.keeps_alive

    async def _serve(self) -> None:
        key = self._authenticate()
        if self._quota.applies(key, self._compiled.snapshot):
            await self._take_slot(key)
        await self._read()
        targets = self._authorize(key)
        if references := self._body.references:
            targets = await self._check_references(key, targets, references)
        self._estimate_tokens()
        limited = self._quota.applies(key, self._compiled.snapshot, self._model)
        if limited:
            self._check_fits(key)
        policy = self._policy
        if policy is not None and policy.has_input:
            if limited:
                await self._check_tokens(key)
            default_output = self._context.default_output
            self._body = await inspect_input(policy, self._body, self._dialect, default_output, self.accounting)
        self.accounting.begin_phase("quota")
        if limited:
            await self._reserve(key)
        self._context.recorder.live.begin(self.accounting.entry, self._input_tokens)
        self._ending.raise_if_ended()
        await self._route(targets)

    # -- authenticate -------------------------------------------------------------------------------------------------

    def _authenticate(self) -> CallerKey:
        context, entry = self._context, self.accounting.entry
        headers = self._headers
        self._reader.check_length()
        peer = self._connection.address
        if context.trusted:
            forwarded_for = ",".join(headers.getall("x-forwarded-for", []))
            entry.client = client_ip(peer, forwarded_for, context.trusted) or peer
        else:
            entry.client = peer
        key = authenticate(headers, self._compiled.snapshot, entry)
        self._ending.raise_if_ended()
        return key

    # -- check key limits, take slot ----------------------------------------------------------------------------------

    async def _take_slot(self, key: CallerKey) -> None:
        """Take the slot before the body is read, so that bodies which are still arriving hold theirs."""
        await self._quota.take_slot(key, self._compiled.snapshot)
        self._response.set_headers(self._quota.headers)
        self._ending.raise_if_ended()

    # -- read ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        self.accounting.begin_phase("receive")
        data = await self._reader.read()
        self.accounting.entry.bytes_in = len(data)
        self.accounting.begin_phase("auth")
        default_output = self._context.default_output
        if needs_process(data):
            self._body = await read_large_body(data, self._dialect, default_output)
        else:
            self._body = read_body(data, self._dialect, default_output)

    # -- authorize ----------------------------------------------------------------------------------------------------

    def _authorize(self, key: CallerKey) -> tuple[Target, ...]:
        """Return the targets that can serve the model of the request."""
        entry, snapshot, request = self.accounting.entry, self._compiled.snapshot, self._body
        entry.stream = request.stream
        entry.model = recorded_model_name(request.model, self._headers, snapshot)
        model = self._model = authorize(key, request.model, snapshot, entry.client)
        entry.provider = model.provider
        self._policy = self._compiled.guards_for(key, model)
        targets = self._compiled.targets(model, self._dialect)
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
                message = f"The `{param}` does not exist."
                raise Refusal(404, "invalid_request_error", message, code=f"{param}_not_found", param=param)
        return targets

    async def _owner_of(self, reply_id: str) -> ResponseOwner | None:
        """Look up who made a reply, unless the caller leaves meanwhile."""
        lookup = asyncio.ensure_future(self._context.response_ids.owner(reply_id))
        ended = self._pause = self._context.loop.create_future()
        try:
            await asyncio.wait((lookup, ended), return_when=asyncio.FIRST_COMPLETED)
            self._ending.raise_if_ended()
            return await lookup
        finally:
            self._pause = None
            lookup.cancel()

    # -- check tokens -------------------------------------------------------------------------------------------------

    def _estimate_tokens(self) -> None:
        request, limits = self._body, self._context.config.limits
        media = request.media
        self.accounting.media_tokens = media_tokens = (
            media.images * limits.image_tokens + media.audio * limits.audio_tokens + media.files * limits.file_tokens
        )
        self._input_tokens = estimate_tokens(len(request.data) - media.encoded_bytes) + media_tokens
        self._quota.tokens = self._input_tokens + request.output_limit

    def _check_fits(self, key: CallerKey) -> None:
        """Refuse a request that needs more tokens than its key may use in a minute, whenever it is sent. Images, audio and
        files count in the reservation, but not here: their tokens are not known."""
        request, limit = self._body, key.rate_limit.tpm
        if limit is None or self._quota.tokens <= limit:
            return
        known = request.input_tokens
        input_tokens = self._dialect.input_tokens(request.data) if known is None else known
        if (needed := input_tokens + request.asked_output) > limit:
            message = f"The request needs up to {needed} tokens, but this API key is limited to {limit} per minute."
            raise Refusal(400, "invalid_request_error", message, code="token_limit_exceeded")

    async def _check_tokens(self, key: CallerKey) -> None:
        """Refuse a request that exceeds a limit before it is inspected. Without an inspection, `reserve` follows at once."""
        self.accounting.begin_phase("quota")
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
        if failure.quotes_upstream and self._policy is not None and self._policy.has_output:
            await inspect_refusal(self._policy, self._dialect, failure.refusal, self.accounting)
        raise failure.refusal

    async def _try_target(self, target: Target, kind: AttemptKind) -> UpstreamFailure | None:
        """Return None if the request was answered, or the failure if another attempt may still serve it."""
        accounting, direct = self.accounting, target.model
        self._ending.raise_if_ended()
        if self._model.routing is not None:
            try:
                await self._quota.reserve_target(direct)
            except Refusal as refusal:
                accounting.skip_over_limit(target, kind)
                return UpstreamFailure("over_limit", None, refusal, retryable=True)
            self._ending.raise_if_ended()  # the caller may have left while the limiter was asked
        accounting.entry.upstream_model, accounting.entry.provider = direct.upstream, direct.provider
        message = await self._message(target)
        accounting.begin_phase("upstream")
        record = accounting.begin_attempt(target, kind)
        delivery = self._delivery = self._make_delivery(target)
        timeouts = self._compiled.timeouts(target, self._model, self._body.stream)
        attempt = self._attempt = UpstreamAttempt(self._context.loop, target, message, timeouts, delivery.receive)
        try:
            await attempt.run()
            await delivery.settle()
            attempt.raise_internal_error()
        finally:
            accounting.end_attempt(record, attempt.exchange, delivery.guard_s)
        record.upstream_request_id = upstream_request_id(attempt.headers, target)
        failure = await delivery.conclude(attempt)
        if failure is None:
            if accounting.entry.error is None:
                self._context.cooldowns.succeeded(target)
            return None
        if self._response.stream is not None:
            if not self._ending.shutting_down:
                targets = self._compiled.targets(self._model, self._dialect)
                self._context.cooldowns.failed(target, failure, perf_counter(), targets)
            delivery.report_cut(failure)
            return None
        record.error = failure.error
        await self._quota.settle_target(accounting.tokens)
        return failure

    async def _message(self, target: Target) -> bytes:
        request, options = self._body, self._usage_options(target)
        forwarded = target.forwarded_headers(self._headers, self.accounting.entry.api_key_id)
        if request.was_read_in_process:
            message = await large_message(request, target, options, self.request_id, forwarded)
            self._ending.raise_if_ended()
            return message
        body = edit_body(request, target.upstream_json, options, target.renames, target.defaults)
        return target.head(len(body), self.request_id, forwarded) + body

    def _usage_options(self, target: Target) -> bytes | None:
        """Return the `stream_options` to set, so that the stream reports its usage."""
        options = self._body.usage_options
        return None if options is None or target.sets("stream_options") else options

    def _make_delivery(self, target: Target) -> ReplyDelivery:
        return ReplyDelivery(
            self._dialect,
            self._policy,
            self._model.name,
            target,
            self._body,
            self._response,
            self.accounting,
            self._ending,
            self._holding,
            self._bind_reply,
            self._settle,
            strips_usage=self._usage_options(target) is not None,
        )

    def _bind_reply(self, reply_id: str, target: Target, usable: bool) -> None:
        """Record who made a reply, or make a blocked one unusable for all callers: the provider may have stored it. An id
        that contains a secret is not recorded."""
        if target.redact(reply_id) == reply_id:
            entry = self.accounting.entry
            owner = ResponseOwner(entry.api_key_id if usable else "", target.key.id, self._model.name)
            self._context.response_ids.record(reply_id, owner, entry.at)

    async def _sleep(self, seconds: float) -> None:
        self.accounting.begin_phase("backoff")
        backoff = self._pause = self._context.loop.create_future()
        timer = self._context.loop.call_later(seconds, _wake, backoff)
        await backoff
        timer.cancel()
        self._pause = None
        self._ending.raise_if_ended()

    # -- the response -------------------------------------------------------------------------------------------------

    def _send(self, status: int, kind: tuple[str, str], body: bytes, *more: tuple[str, str]) -> None:
        self.accounting.entry.bytes_out = len(body)
        self._response.send(status, body, self.accounting.phases_at_head(), kind, *more)

    def _refuse(self, refusal: Refusal) -> None:
        self.accounting.record_failure(refusal.status, refusal.type)
        self.accounting.entry.limited_by = refusal.limited_by
        more = list(refusal.headers)
        if refusal.retry_after is not None:
            more.append(("retry-after", str(refusal.retry_after)))
        self._send(refusal.status, JSON, self._dialect.error_body(refusal), *more)

    # -- account ------------------------------------------------------------------------------------------------------

    async def _account(self) -> None:
        """Write the ledger entry, settle the limits and end the stream."""
        stream = self._response.stream
        if stream is not None:
            self.accounting.entry.bytes_out = stream.sent
        self._context.recorder.record(self.accounting.close())
        self._holding.release()
        if self._is_abandoned:
            self._context.abandoned_streams -= 1
        delivery, self._attempt, self._delivery = self._delivery, None, None
        if delivery is not None:
            delivery.close()
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
        if self._response.stream is None:
            self._refuse(refusal)
            return
        self.accounting.record_failure(500, refusal.type, "cut")
        if self._delivery is not None:
            self._delivery.send_error_event(refusal.type)

    # -- timers and disconnects ---------------------------------------------------------------------------------------

    def tick(self, now: float, receive_s: float) -> None:
        """Check timeouts. Called ten times a second."""
        self._connection.check_disconnect()
        attempt, delivery = self._attempt, self._delivery
        if attempt is not None and delivery is not None:
            if now >= attempt.due:
                attempt.tick(now)
            delivery.send_heartbeat(now)
            full_since, limit = delivery.full_since, self._context.config.upstream.stream_timeout_s
            if full_since is not None and limit and now >= full_since + self._read_s(attempt, limit):
                self._on_disconnect()
        elif self._reader.waiting and self.accounting.elapsed_s > receive_s:
            self._reader.end()

    def _read_s(self, attempt: UpstreamAttempt, default: float) -> float:
        """Return how long the caller may read nothing."""
        silence_s = self._compiled.timeouts(attempt.target, self._model, True).silence_s
        return default if silence_s is None else silence_s

    def end(self) -> None:
        """End the request: the drain time is over."""
        self._ending.shutting_down = True
        self._stop(SHUTTING_DOWN)

    def _on_disconnect(self) -> None:
        ending, delivery, attempt = self._ending, self._delivery, self._attempt
        if ending.caller_gone:
            return
        ending.caller_gone = True
        if delivery is None or attempt is None:
            self._stop(CALLER_GONE)
        elif not delivery.blocked:  # else the stream is read on anyway
            if self._reads_on(attempt, delivery):
                delivery.leave()
                attempt.read_on(READ_ON_S, READ_ON_BYTES)
            else:
                self._stop(CALLER_GONE)

    def _reads_on(self, attempt: UpstreamAttempt, delivery: ReplyDelivery) -> bool:
        """Return whether the rest of a stream is read for its usage, although the caller has left."""
        context = self._context
        if not self._body.stream or delivery.complete or not attempt.was_sent or not attempt.running:
            return False
        if not attempt.target.model.reads_on or self._ending.shutting_down:
            return False
        if context.abandoned_streams >= context.config.upstream.max_abandoned_streams:
            return False
        context.abandoned_streams += 1
        self._is_abandoned = True
        return True

    def _stop(self, error: WireError) -> None:
        """Wake the request wherever it waits."""
        if self._delivery is not None:
            self._delivery.stop_waiting()
        if self._pause is not None:
            _wake(self._pause)
        elif self._attempt is not None:
            self._attempt.abort(error)
        else:
            self._reader.end()


def _wake(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
