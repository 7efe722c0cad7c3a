"""The ledger entry of a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.relay.accounting import Accounting
from penstock.gateway.routes import BY_PATH
from penstock.wire.exchange import Exchange

TARGET: Any = SimpleNamespace(
    model=SimpleNamespace(name="fast", upstream="fast-upstream"), key=SimpleNamespace(name="up")
)


def test_request_that_was_sent_twice_is_two_attempts() -> None:
    accounting = Accounting("req_1", BY_PATH["/v1/responses"], 0)
    attempt = accounting.begin_attempt(TARGET, "initial")
    exchange = Exchange(b"", lambda _: None)
    exchange.retries, exchange.lost_ns = 1, 3_000_000
    exchange.status, exchange.connect_ns = 200, 1_000_000
    exchange.start, exchange.first_byte = 0, 2_000_000
    accounting.end_attempt(attempt, exchange, 0.0)
    lost, resent = accounting.entry.attempts
    assert (lost.kind, lost.error, lost.status, lost.first_byte_ms) == ("initial", "transport", None, None)
    assert (resent.kind, resent.error, resent.status) == ("resend", None, 200)
    assert resent.started_ms == lost.ended_ms == pytest.approx(lost.started_ms + 3)
    assert resent.first_byte_ms == pytest.approx(resent.started_ms + 3)
