"""Attempts that the gateway ends: because it shuts down, or because the caller has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway import request as request_module
from penstock.gateway.accounting import Accounting
from penstock.gateway.inbound.body import read_body
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.memory import MemoryBudget
from penstock.gateway.outbound.response import CommonHeaders
from penstock.gateway.refusal import Refusal
from penstock.gateway.request import READ_ON_BYTES, READ_ON_S, GatewayRequest
from penstock.gateway.resources.snapshot import Cooldown, Model, ProviderKey, Routing
from penstock.gateway.routes import BY_NAME
from penstock.gateway.upstream import attempt as attempt_module
from penstock.gateway.upstream.attempt import Timeouts, UpstreamAttempt
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.gateway.upstream.routing import RoundRobin
from penstock.secrets import Secret
from penstock.wire.exchange import Exchange, WireError
from support.caller_requests import RecordingConnection, caller_request


class SlowLimiter:
    """A limiter that waits for `answer` before it returns the next result."""

    def __init__(self, *results: Reservation | Refusal) -> None:
        self._results = list(results)
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.settled: list[int] = []

    async def admit_target(self, *_: Any) -> Reservation:
        self.asked.set()
        await self.answer.wait()
        result = self._results.pop(0)
        if isinstance(result, Refusal):
            raise result
        return result

    async def settle(self, _reservation: Reservation, tokens: int, _now: float) -> None:
        self.settled.append(tokens)


@pytest.mark.parametrize("first_is_full", [False, True])
def test_request_ended_while_waiting_for_target_limits_makes_no_attempt(first_is_full: bool) -> None:
    async def run() -> tuple[Accounting, SlowLimiter]:
        full = [Refusal(429, "rate_limit_exceeded", "")] if first_is_full else []
        limiter = SlowLimiter(*full, Reservation())
        app: Any = SimpleNamespace(limiter=limiter, cooldowns=Cooldowns(), round_robin=RoundRobin(), loop=None)
        app.config = SimpleNamespace(upstream=SimpleNamespace(retries=0))
        app.worker = 0
        app.common_headers = CommonHeaders()
        app.memory, app.max_body = MemoryBudget(1 << 30), 1 << 26
        app.recorder = SimpleNamespace(record=lambda entry: None)
        dialect = BY_NAME["responses"]
        group = Model(id="g", name="g", routing=Routing(targets=("a", "b")))
        compiled: Any = SimpleNamespace()
        request = GatewayRequest(app, compiled, caller_request(), dialect, "id", "id")
        request._model, request._body = group, read_body(b'{"model":"g"}', dialect, 0)
        # The targets have no host, so an attempt would fail.
        key = ProviderKey(id="k", name="k", secret=Secret("s"))
        targets: Any = [SimpleNamespace(model=Model(id=name, name=name), key=key) for name in ("a", "b")]
        running = asyncio.create_task(request._route(tuple(targets)))
        await limiter.asked.wait()
        request.end()
        limiter.answer.set()
        with pytest.raises(Refusal) as refused:
            await running
        assert refused.value.type == "shutting_down"
        await request._account()
        return request.accounting, limiter

    accounting, limiter = asyncio.run(run())
    assert [attempt.error for attempt in accounting.entry.attempts] == (["over_limit"] if first_is_full else [])
    assert limiter.settled == ([] if first_is_full else [0])


class CutAttempt:
    """An attempt whose stream ends after its first event: the upstream aborts it, or the gateway shuts down."""

    on_event: Callable[[], None]

    def __init__(self, _loop: Any, target: Any, _message: bytes, _timeouts: Any, make_receiver: Any) -> None:
        self.target, self._make_receiver = target, make_receiver
        self.headers = {b"content-type": b"text/event-stream"}
        self.exchange = Exchange(b"", lambda _: None)
        self.exchange.status = 200
        self.elapsed_ms = 0.0

    async def run(self) -> None:
        self._make_receiver(self).feed(b'data: {"type":"response.created","response":{"id":"resp_1"}}\n\n')
        self.on_event()
        self.abort(WireError("ConnectionLost", "", "network"))

    def abort(self, error: WireError) -> None:
        self.exchange.error = self.exchange.error or error

    def raise_internal_error(self) -> None:
        """There is none."""


@pytest.mark.parametrize("shutting_down", [False, True])
def test_stream_that_the_gateway_cuts_is_no_failure_of_its_target(
    shutting_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = BY_NAME["responses"]
    key = ProviderKey(id="k", name="k", secret=Secret("s"))
    models = [Model(id=name, name=name, cooldown=Cooldown(min_failures=1)) for name in ("a", "b")]
    targets: Any = [
        SimpleNamespace(model=model, key=key, redact=str, secrets=[], sets=lambda _: False) for model in models
    ]
    app: Any = SimpleNamespace(cooldowns=Cooldowns(), worker=0, limiter=None, loop=None)
    app.common_headers = CommonHeaders()
    app.memory, app.max_body = MemoryBudget(1 << 30), 1 << 26
    app.response_ids = SimpleNamespace(record=lambda *_: None)
    compiled: Any = SimpleNamespace(targets=lambda *_: targets, timeouts=lambda *_: None)

    async def no_message(_target: Any) -> bytes:
        return b""

    caller = RecordingConnection()
    request = GatewayRequest(app, compiled, caller_request(caller), dialect, "id", "id")
    request._model, request._body = models[0], read_body(b'{"model":"a","stream":true}', dialect, 0)
    monkeypatch.setattr(request, "_message", no_message)
    monkeypatch.setattr(request_module, "UpstreamAttempt", CutAttempt)
    monkeypatch.setattr(CutAttempt, "on_event", request.end if shutting_down else lambda *_: None, raising=False)
    assert asyncio.run(request._try_target(targets[0], "initial")) is None
    assert app.cooldowns.cooling(targets[0], perf_counter()) is not shutting_down
    assert caller.written.count(b"response.created") == 1
    assert (b"shutting_down" in caller.written) is shutting_down


class StillHost:
    """A host whose exchanges get what the test gives them."""

    def start(self, _exchange: Exchange, _connect_s: float | None) -> None:
        """Wait for the test."""

    def abort(self, exchange: Exchange, error: WireError) -> None:
        exchange.error = error
        exchange.on_end(exchange)

    def ended(self, exchange: Exchange) -> None:
        """Keep no connection."""

    def connect_due(self, _exchange: Exchange) -> float:
        return inf


class Sink:
    """A receiver that waits for more, whatever arrives."""

    max_bytes = inf
    complete = False

    def feed(self, data: bytes) -> None:
        """Ignore the data."""


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def abandoned(clock: Clock, before: int = 0) -> UpstreamAttempt:
    """Return an attempt whose caller has left after so many bytes."""
    target: Any = SimpleNamespace(host=StillHost())
    attempt = UpstreamAttempt(asyncio.get_running_loop(), target, b"", Timeouts(1, 5, 5), lambda _: Sink())
    attempt.exchange.status = 200
    receive(attempt, before or 1)
    attempt.read_on(READ_ON_S, READ_ON_BYTES)
    return attempt


def receive(attempt: UpstreamAttempt, size: int) -> None:
    attempt.exchange.pieces.append(bytes(size))
    attempt._on_data(attempt.exchange)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(attempt_module, "monotonic", clock.monotonic)
    return clock


@pytest.mark.parametrize("pieces", [[16 << 20], [1 << 20] * 16, [(16 << 20) - 1, 1]])
@pytest.mark.parametrize("before", [0, 40 << 20])
def test_stream_that_its_caller_left_is_read_for_16_mib_more(clock: Clock, pieces: list[int], before: int) -> None:
    async def scenario() -> None:
        attempt = abandoned(clock, before)
        for size in pieces:
            receive(attempt, size)
        assert attempt.running
        receive(attempt, 1)
        assert not attempt.running
        assert attempt.exchange.error is attempt_module.CALLER_GONE

    asyncio.run(scenario())


@pytest.mark.parametrize("is_quiet", [False, True])
def test_stream_that_its_caller_left_is_read_for_60_s_whatever_its_timeouts_are(clock: Clock, is_quiet: bool) -> None:
    async def scenario() -> None:
        attempt = abandoned(clock)
        for _ in range(59):
            clock.now += 1
            if not is_quiet:
                receive(attempt, 10)
            attempt.tick(clock.now)
        assert attempt.running
        clock.now += 1
        assert clock.now >= attempt.due
        attempt.tick(clock.now)
        assert not attempt.running

    asyncio.run(scenario())
