"""Planted secrets are looked for in everything that leaves the gateway (X-13)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gateway_process import ALIAS, GatewayProcess, keyword, resources, sha256
from support.programs import wait_for
from support.scripted_upstream import Received, Upstream, Wire, event, response_body, response_events

CALLER_SECRET = "sk-planted-caller-7f3a9c"
PROVIDER_SECRET = "sk-planted-provider-b81e22"
OTHER_SECRET = "sk-planted-unknown-44aa01"
HEADER_SECRET = "planted-default-header-9e9e"
SECRETS = (CALLER_SECRET, PROVIDER_SECRET, OTHER_SECRET, HEADER_SECRET)
CONTENT = ("planted-prompt-text-5501", "planted-answer-text-8802", "PLANTED-WORD")


@pytest.mark.parametrize("access_log", ["text", "json"])
def test_secrets_are_nowhere(start: Any, upstream: Upstream, access_log: str) -> None:
    given = resources(
        upstream.url,
        provider_key={"api_key": PROVIDER_SECRET, "request": {"default_headers": {"X-Extra": HEADER_SECRET}}},
        caller={"key_hash": sha256(CALLER_SECRET)},
        guardrails=[keyword("words", "PLANTED-WORD")],
    )
    gateway: GatewayProcess = start(given, access_log=access_log, env={"PENSTOCK_DEBUG": "1"})
    seen: list[str] = []
    count = [0]

    def ask(body: Any, key: str | None = CALLER_SECRET, path: str = "/v1/responses", **headers: str) -> None:
        reply = gateway.post(path, body, key=key, headers=headers)
        count[0] += 1
        seen.append(str(reply.headers) + reply.body.decode(errors="replace"))

    plain = {"model": ALIAS, "input": CONTENT[0]}

    def echo(status: int) -> Any:
        """A provider that repeats what it was sent, head and body."""

        def script(request: Received, wire: Wire) -> None:
            error = {"message": f"You sent {request.head} {OTHER_SECRET if status == 0 else ''}", "type": request.head}
            wire.reply(status, {"error": error}, x_echo=PROVIDER_SECRET, x_request_id=PROVIDER_SECRET)

        return script

    upstream.replies(response_body(CONTENT[1]))
    ask(plain)
    ask(plain, OTHER_SECRET)
    ask(plain, None, **{"X-Api-Key": OTHER_SECRET})
    ask({**plain, "model": OTHER_SECRET})
    ask(b'{"model": "' + CALLER_SECRET.encode())
    ask({**plain, "input": "PLANTED-WORD"})
    ask(plain, path=f"/v1/{OTHER_SECRET}")
    count[0] -= 1  # no route, no record
    upstream.replies(response_body("PLANTED-WORD"))
    ask(plain)
    for status in (400, 401, 500):
        upstream.does(echo(status))
        ask(plain)
    gateway.post("/v1/responses", {**plain, "model": CALLER_SECRET}, key=CALLER_SECRET)
    ask(plain, **{"X-Penstock-Request-Id": CALLER_SECRET})
    ask(plain, OTHER_SECRET, **{"X-Penstock-Request-Id": f"id-{OTHER_SECRET}"})
    for status in (429, 503):
        upstream.replies({}, status, retry_after=PROVIDER_SECRET)
        ask(plain)
    named = response_body(CONTENT[1]) | {"id": PROVIDER_SECRET, "status": HEADER_SECRET}
    upstream.replies(named)
    gateway.post("/v1/responses", plain, key=CALLER_SECRET)  # the caller gets the provider's words as they are
    upstream.streams([event("response.completed", response=named)])
    gateway.stream(key=CALLER_SECRET).rest()
    count[0] += 3
    upstream.does(lambda _request, wire: wire.cut())
    ask(plain)
    upstream.streams(response_events([CONTENT[1]]))
    stream = gateway.stream(key=CALLER_SECRET)
    stream.rest()
    count[0] += 1
    bad = json.loads(json.dumps(given))
    bad["provider_keys"][0]["api_bass"] = PROVIDER_SECRET
    gateway.reload(bad)

    wait_for(lambda: len(gateway.rows()) == count[0], 10)
    left = [gateway.metrics(), json.dumps(gateway.config()), gateway.status("/readyz").body.decode()]
    gateway.stop()
    left.append(gateway.said())
    left.append(json.dumps(gateway.rows()))
    for path in [*gateway.folder.glob("usage.db*"), *gateway.folder.glob("spool/*")]:
        left.append(path.read_bytes().decode("latin-1"))
    everything = "\n".join(left)
    for secret in SECRETS:
        assert secret not in everything
    for text in CONTENT:
        assert text not in everything
    replies = "\n".join(seen)
    # a caller's own mistake may be shown to that caller; a provider's secret to nobody
    for secret in (PROVIDER_SECRET, HEADER_SECRET, CALLER_SECRET):
        assert secret not in replies
    assert "PLANTED-WORD" not in replies
