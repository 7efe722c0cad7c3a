"""Tests of the `Server-Timing` header: writing it, and parsing what other servers send."""

from __future__ import annotations

import pytest

from penstock.gateway.observe.timing import server_timing
from penstock.wire.server_timing import parse_server_timing


def test_written_header_can_be_parsed() -> None:
    phases = {"auth": 0.0412, "guardrail_in": 0.0, "upstream": 231.2, "total": 231.9}
    value = server_timing(phases)
    assert value == "auth;dur=0.041, guardrail_in;dur=0.000, upstream;dur=231.200, total;dur=231.900"
    assert parse_server_timing(value) == pytest.approx(phases, abs=0.0005)
    assert server_timing({}) == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {}),
        ("miss, db;dur=53, app;dur=47.2", {"db": 53.0, "app": 47.2}),
        ('cache;desc="Cache; dur=9, read";dur=23.2', {"cache": 23.2}),
        ('a;dur="2.5"', {"a": 2.5}),
        ("a ; DUR = 1e1 ,b;x=1;dur=2", {"a": 10.0, "b": 2.0}),
        ("total;dur=1, total;dur=2", {"total": 1.0}),
        ("a;dur=1;dur=2", {"a": 1.0}),
        ("a;dur=nan, b;dur=inf, c;dur=, d;dur=x, e;dur=1_0, f", {}),
        (',,;;, ="";dur=3, ok;dur=1', {"ok": 1.0}),
        ('open;desc="never closed, b;dur=1', {"b": 1.0}),
    ],
)
def test_headers_of_other_servers_are_parsed(value: str, expected: dict[str, float]) -> None:
    assert parse_server_timing(value) == expected
