"""Attempts of a request that the gateway ends, because it shuts down."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.accounting import Accounting
from penstock.gateway.inbound.body import read_body
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.memory import MemoryBudget
from penstock.gateway.outbound.response import CommonHeaders
from penstock.gateway.refusal import Refusal
from penstock.gateway.request import GatewayRequest
from penstock.gateway.resources.snapshot import Model, ProviderKey, Routing
from penstock.gateway.routes import BY_NAME
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.gateway.upstream.routing import RoundRobin
from penstock.secrets import Secret
from support.caller_requests import caller_request


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
