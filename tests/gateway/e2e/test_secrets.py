"""Planted secrets and texts must not appear in any output of the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gateway_process import ALIAS, GatewayProcess, keyword, resources, sha256
from support.programs import wait_for
from support.scripted_upstream import (
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    event,
    response_body,
    response_events,
)

CALLER_SECRET = "sk-planted-caller-7f3a9c"
PROVIDER_SECRET = "sk-planted-provider-b81e22"
OTHER_SECRET = "sk-planted-unknown-44aa01"
HEADER_SECRET = "planted-default-header-9e9e"
SECRETS = (CALLER_SECRET, PROVIDER_SECRET, OTHER_SECRET, HEADER_SECRET)
CONTENT = ("planted-prompt-text-5501", "planted-answer-text-8802", "PLANTED-WORD")


@pytest.mark.slow
@pytest.mark.parametrize("access_log", ["text", "json"])
def test_secrets_and_texts_appear_in_no_output(start: Any, upstream: Upstream, access_log: str) -> None:
    resource_file = resources(
        upstream.url,
        provider_key={"api_key": PROVIDER_SECRET, "request": {"default_headers": {"X-Extra": HEADER_SECRET}}},
        caller={"key_hash": sha256(CALLER_SECRET)},
        guardrails=[keyword("words", "PLANTED-WORD")],
    )
    gateway: GatewayProcess = start(resource_file, access_log=access_log, env={"PENSTOCK_DEBUG": "1"})
    replies_text: list[str] = []
    count = [0]

    def send(body: Any, key: str | None = CALLER_SECRET, path: str = "/v1/responses", **headers: str) -> None:
        reply = gateway.post(path, body, key=key, headers=headers)
        # the gateway's own 401 and 404 have no entry; an error of the upstream has
        count[0] += reply.status not in (401, 404) or "upstream;" in reply.headers["server-timing"]
        replies_text.append(str(reply.headers) + reply.body.decode(errors="replace"))

    plain = {"model": ALIAS, "input": CONTENT[0]}

    def echo(status: int) -> Any:
        """Return a script that repeats the request head in an error."""

        def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
            error = {"message": f"You sent {request.head} {OTHER_SECRET if status == 0 else ''}", "type": request.head}
            connection.reply(status, {"error": error}, x_echo=PROVIDER_SECRET, x_request_id=PROVIDER_SECRET)

        return script

    upstream.reply_with(response_body(CONTENT[1]))
    send(plain)
    send(plain, OTHER_SECRET)
    send(plain, None, **{"X-Api-Key": OTHER_SECRET})
    send({**plain, "model": OTHER_SECRET})
    send(b'{"model": "' + CALLER_SECRET.encode())
    send({**plain, "input": "PLANTED-WORD"})
    send(plain, path=f"/v1/{OTHER_SECRET}")
    upstream.reply_with(response_body("PLANTED-WORD"))
    send(plain)
    for status in (400, 401, 500):
        upstream.use_script(echo(status))
        send(plain)
    gateway.post("/v1/responses", {**plain, "model": CALLER_SECRET}, key=CALLER_SECRET)
    send(plain, **{"X-Penstock-Request-Id": CALLER_SECRET})
    send(plain, OTHER_SECRET, **{"X-Penstock-Request-Id": f"id-{OTHER_SECRET}"})
    for status in (429, 503):
        upstream.reply_with({}, status, retry_after=PROVIDER_SECRET)
        send(plain)
    reply_with_secrets = response_body(CONTENT[1]) | {"id": PROVIDER_SECRET, "status": HEADER_SECRET}
    upstream.reply_with(reply_with_secrets)
    gateway.post("/v1/responses", plain, key=CALLER_SECRET)  # the caller gets the provider's reply unchanged
    upstream.stream_with([event("response.completed", response=reply_with_secrets)])
    gateway.stream(key=CALLER_SECRET).read_rest()
    count[0] += 2
    upstream.use_script(lambda _request, connection: connection.reset())
    send(plain)
    upstream.stream_with(response_events([CONTENT[1]]))
    stream = gateway.stream(key=CALLER_SECRET)
    stream.read_rest()
    count[0] += 1
    bad = json.loads(json.dumps(resource_file))
    bad["provider_keys"][0]["api_bass"] = PROVIDER_SECRET
    gateway.reload(bad)

    wait_for(lambda: len(gateway.ledger_rows()) == count[0])
    outputs = [gateway.metrics(), json.dumps(gateway.config()), gateway.status("/readyz").body.decode()]
    gateway.stop()
    outputs.append(gateway.log_text())
    outputs.append(json.dumps(gateway.ledger_rows()))
    for path in [*gateway.folder.glob("usage.db*"), *gateway.folder.glob("spool/**/*")]:
        if path.is_file():
            outputs.append(path.read_bytes().decode("latin-1"))
    all_outputs = "\n".join(outputs)
    for secret in SECRETS:
        assert secret not in all_outputs
    for text in CONTENT:
        assert text not in all_outputs
    replies = "\n".join(replies_text)
    # a reply may repeat what its caller sent, but no secret of a provider and no valid key
    for secret in (PROVIDER_SECRET, HEADER_SECRET, CALLER_SECRET):
        assert secret not in replies
    assert "PLANTED-WORD" not in replies
