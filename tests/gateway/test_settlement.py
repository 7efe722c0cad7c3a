"""The slot of a request is free before its caller can send the next one, perhaps to another worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.inbound.body import read_body
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.memory import MemoryBudget
from penstock.gateway.outbound.response import CommonHeaders
from penstock.gateway.refusal import Refusal
from penstock.gateway.request import GatewayRequest
from penstock.gateway.resources.snapshot import Model
from penstock.gateway.routes import BY_NAME
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.wire.exchange import Exchange
from support.caller_requests import RecordingConnection, caller_request

DIALECT = BY_NAME["embeddings"]


class OneSlot:
    """A limiter with a single slot."""

    def __init__(self) -> None:
        self.settlements = 0

    async def settle(self, reservation: Reservation, _tokens: int, _now: float) -> None:
        reservation.settled = True
        self.settlements += 1


async def refuse(_request: GatewayRequest) -> None:
    raise Refusal(422, "content_filter", "blocked")


async def reply(request: GatewayRequest) -> None:
    exchange = Exchange(b"", lambda _: None)
    exchange.status = 200
    target: Any = SimpleNamespace(model=Model(id="a", name="a"), redact=str, secrets=[], key=None)
    attempt: Any = SimpleNamespace(exchange=exchange, headers={}, target=target, elapsed_ms=0)
    request._body = read_body(b'{"model":"a"}', DIALECT, 0)
    request._model = target.model
    delivery = request._make_delivery(target)
    delivery.receive(attempt).feed(b'{"usage":{"prompt_tokens":3}}')
    assert await delivery.conclude(attempt) is None


async def end_stream(request: GatewayRequest) -> None:
    request._response.begin_stream(200, {})


@pytest.mark.parametrize("serve", [refuse, reply, end_stream])
def test_slot_is_free_when_the_reply_ends(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, slot = OneSlot(), Reservation(slots=("slot",))
    recorder = SimpleNamespace(record=lambda _: None)
    app: Any = SimpleNamespace(limiter=limiter, cooldowns=Cooldowns(), recorder=recorder, worker=0)
    app.common_headers = CommonHeaders()
    app.memory, app.max_body = MemoryBudget(1 << 30), 1 << 26
    is_free: list[bool] = []
    caller = RecordingConnection(lambda _: is_free.append(slot.settled))
    unused: Any = None
    monkeypatch.setattr(GatewayRequest, "_serve", serve)
    request = GatewayRequest(app, unused, caller_request(caller), DIALECT, "id", "id")
    request._quota._slot = slot
    asyncio.run(request.run())
    assert is_free[-1]  # at the last write
    assert limiter.settlements == 1
