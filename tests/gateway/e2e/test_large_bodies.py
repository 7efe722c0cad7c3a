"""Large bodies: limits apply before they are read, and the work that they cause is bounded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.inbound import body
from penstock.gateway.inbound.body import read_body
from penstock.gateway.refusal import Refusal
from penstock.gateway.routes import BY_NAME
from support.gateway_process import ALIAS, CALLER, GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import Upstream, response_body


def head(length: int) -> bytes:
    lines = ("POST /v1/responses HTTP/1.1", "Host: x", f"Authorization: Bearer {CALLER}", f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("limit", [{"rpm": 1}, {"tpm": 40}])
def test_key_at_its_limit_is_refused_before_the_body_is_read(
    gateway: GatewayProcess, upstream: Upstream, limit: dict[str, int]
) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": f"full {limit}", "rate_limit": limit}))
    assert gateway.respond(max_output_tokens=1).status == 200
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as caller:
        caller.sendall(head(50_000_000))
        assert caller.recv(4096).startswith(b"HTTP/1.1 429 ")


def test_body_that_is_still_arriving_holds_its_slot(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "slow", "rate_limit": {"concurrency": 1}}))
    data = json.dumps({"model": ALIAS, "input": "x" * 100_000}).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as caller:
        caller.sendall(head(len(data)) + data[:1000])
        wait_for(lambda: gateway.respond().status == 429)
        caller.sendall(data[1000:])
        reply = caller.recv(4096)
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert b"x-ratelimit-remaining-concurrent: 0" in reply
    wait_for(lambda: gateway.respond().status == 200)


def test_tokens_are_checked_before_the_input_is_inspected(gateway: GatewayProcess, upstream: Upstream) -> None:
    """A blocked request costs no RPM, and one above its limit is not inspected."""
    gateway.reload(
        resources(
            upstream.url,
            caller={"display_name": "inspected", "rate_limit": {"tpm": 400, "rpm": 2}},
            guardrails=[keyword("words", "nightjar")],
        )
    )
    for _ in range(3):
        assert gateway.respond("nightjar", max_output_tokens=1).status == 422
    assert gateway.respond(max_output_tokens=300).status == 200
    reply = gateway.respond("nightjar", max_output_tokens=395)
    assert (reply.status, gateway.ledger_entry(reply)["guardrails"]) == (429, [])


def test_body_with_too_many_values_is_413_and_other_requests_are_served(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nightjar")]))
    data = b'{"model":"%b","input":[%b"a"]}' % (ALIAS.encode(), b'"a",' * 3_000_000)
    replies: list[Any] = []
    sender = threading.Thread(target=lambda: replies.append(gateway.post("/v1/responses", data)))
    sender.start()
    while not replies:
        assert gateway.request("GET", "/livez").status == 200
    sender.join()
    assert (replies[0].status, replies[0].error["type"]) == (413, "invalid_request_error")
    assert upstream.requests == []


def test_search_for_the_model_name_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BRACKETS", 100)
    data = b'{"model":"a","input":["model",%b1]}'
    read_body(data % (b"[[]]," * 20), BY_NAME["responses"], 0)
    with pytest.raises(Refusal) as refused:
        read_body(data % (b"[[[]]]," * 200), BY_NAME["responses"], 0)
    assert refused.value.status == 413


@pytest.mark.parametrize("name", ["responses", "chat"])
def test_estimate_of_a_large_body_leaves_out_files(name: str) -> None:
    texts = "word " * 40_000
    image = "data:image/png;base64," + "A" * 400_000
    data = json.dumps({"model": "m", "input": [texts, image, {"file_data": "B" * 400_000}]}).encode()
    assert 50_000 <= BY_NAME[name].input_tokens(data) <= 50_100


@pytest.mark.slow
def test_large_reply_is_sent_whole_and_a_caller_that_does_not_read_it_is_499(
    start: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = start(resources(upstream.url), upstream={"stream_timeout_s": 3})
    reply = response_body("z" * 30_000_000)
    upstream.reply_with(reply)
    assert gateway.respond().json == reply
    data = json.dumps({"model": ALIAS, "input": "x"}).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as caller:
        caller.sendall(head(len(data)).replace(b"\r\n\r\n", b"\r\nx-penstock-request-id: idle-1\r\n\r\n") + data)
        entry = gateway.ledger_entry("idle-1")
    assert (entry["status"], entry["error"]) == (499, "client_disconnected")
    assert (entry["usage_source"], entry["output_tokens"]) == ("upstream", 23)
    assert entry["bytes_out"] < 30_000_000


def resident_bytes(gateway: GatewayProcess) -> int:
    """Return the memory of all processes of the gateway."""
    processes = {int(name): Path(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()}
    parents: dict[int, int] = {}
    for pid, path in processes.items():
        with contextlib.suppress(OSError):
            parents[pid] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {gateway.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0
    for pid in family:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


@pytest.mark.slow
@pytest.mark.parametrize("side", ["request", "reply"])
def test_six_bodies_of_40_mb_stay_below_a_gigabyte(start: Any, upstream: Upstream, side: str) -> None:
    """Bodies beyond the budget are refused with 503; replies wait for each other, and all arrive."""
    gateway: GatewayProcess = start(resources(upstream.url, guardrails=[keyword("words", "nothing-of-this")]))
    text = "harmless words " * (40_000_000 // 15)
    if side == "reply":
        upstream.reply_with(response_body(text))
    replies: list[Any] = []

    def ask() -> None:
        replies.append(gateway.respond(text if side == "request" else "Hi."))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    peak = 0
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, resident_bytes(gateway))
        time.sleep(0.02)
    assert peak < 1_000_000_000
    statuses = sorted(reply.status for reply in replies)
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    if side == "reply":
        assert statuses == [200] * 6
    assert all(reply.headers["retry-after"] == "1" for reply in replies if reply.status == 503)
