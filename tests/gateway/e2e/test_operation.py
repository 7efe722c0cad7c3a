"""Operation of the gateway: reload, drain, dying workers, TLS, status, metrics, command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, Stream, fetch, keyword, resources, sha256
from support.programs import BIN, Program, wait_for
from support.scripted_upstream import ReceivedRequest, ScriptedConnection, Upstream, response_body, response_events


class PausedStream:
    """An upstream stream that pauses until `release` is set."""

    def __init__(self, upstream: Upstream) -> None:
        self.events = response_events(["One", " two", " three"])
        self.release = threading.Event()
        upstream.use_script(self._script)

    def _script(self, request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for piece in self.events[:5]:
            connection.chunk(piece)
        connection.wait_for(self.release)
        for piece in self.events[5:]:
            connection.chunk(piece)
        connection.end()


# -- reload ---------------------------------------------------------------------------------------------------------------


def test_running_stream_finishes_with_the_old_resources(gateway: GatewayProcess, upstream: Upstream) -> None:
    paused = PausedStream(upstream)
    stream = gateway.stream()
    stream.next_event()
    # remove the key and the alias, and add a guardrail that would block the rest
    resource_file = resources(
        upstream.url,
        model={"display_name": "renamed"},
        caller={"key_hash": sha256("sk-new")},
        guardrails=[keyword("words", "three")],
    )
    assert gateway.reload(resource_file)["state"] == "synced"
    assert gateway.respond().status == 401
    assert gateway.post("/v1/responses", {"model": ALIAS, "input": "x"}, key="sk-new").status == 404
    paused.release.set()
    assert stream.received + stream.read_rest() == b"".join(paused.events)
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["model"], entry["usage_source"]) == (200, ALIAS, "upstream")


def test_invalid_resource_file_is_rejected_completely(gateway: GatewayProcess, upstream: Upstream) -> None:
    bad = resources(upstream.url, model={"provider_key": "nobody", "modle_name": "x"}, caller={"key_hash": "short"})
    bad["provider_keys"][0]["api_key"] = "sk-planted-in-a-bad-file"
    state = gateway.reload(bad)
    assert state["state"] == "degraded"
    errors = "\n".join(state["last_failure"]["errors"])
    assert "nobody" in errors
    assert "modle_name" in errors
    assert "key_hash" in errors
    assert gateway.respond().status == 200
    assert "the last valid version stays in use" in gateway.log_text()
    assert all(line.strip() in gateway.log_text() for line in state["last_failure"]["errors"])
    assert "sk-planted-in-a-bad-file" not in gateway.log_text() + json.dumps(state)
    assert "penstock_gateway_config_last_reload_successful 0" in gateway.metrics()
    state = gateway.reload("]]] not yaml")
    assert (state["state"], state["applied"]["counts"]["models"]) == ("degraded", 1)
    assert gateway.reload(resources(upstream.url))["state"] == "synced"


def test_watched_file_is_reloaded_when_it_changes(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), watch=True)
    assert gateway.respond(key="sk-second").status == 401
    second = {"display_name": "second", "key_env": "SECOND_KEY", "allowed_models": ["*"]}
    gateway._write(resources(upstream.url, api_keys=[second]))
    wait_for(lambda: gateway.config()["state"] == "degraded", what="the failure: the variable is not set")
    second = {"display_name": "second", "key_hash": sha256("sk-second"), "allowed_models": ["*"]}
    gateway._write(resources(upstream.url, api_keys=[second]))
    wait_for(lambda: gateway.respond(key="sk-second").status == 200)


def test_restoring_the_applied_file_clears_the_failure(start: Any, upstream: Upstream) -> None:
    good = resources(upstream.url)
    gateway: GatewayProcess = start(good, watch=True)
    for spoil in (lambda: gateway._write("]]] not yaml"), gateway.resources.unlink):
        spoil()
        wait_for(lambda: gateway.config()["state"] == "degraded")
        gateway._write(good)
        state = wait_for(lambda: (now := gateway.config())["state"] == "synced" and now, what="the state `synced`")
        assert state["last_failure"] is None
        assert "penstock_gateway_config_last_reload_successful 1" in gateway.metrics()
    assert gateway.respond().status == 200


def test_environment_variables_are_used_in_resources(start: Any, upstream: Upstream) -> None:
    resource_file = resources(upstream.url, provider_key={"api_key": "${UP_KEY}"}, caller={"key_env": "CALLER_KEY"})
    del resource_file["api_keys"][0]["key_hash"]
    gateway: GatewayProcess = start(resource_file, env={"UP_KEY": "sk-from-env", "CALLER_KEY": "sk-caller-env"})
    assert gateway.respond(key="sk-caller-env").status == 200
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-from-env"


def test_attached_guardrail_applies_to_its_keys_teams_and_models_only(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    def caller(name: str, **fields: Any) -> dict[str, Any]:
        return {"display_name": name, "key_hash": sha256(f"sk-{name}"), "allowed_models": ["*"], **fields}

    other = {"display_name": "other", "provider": "openai", "model_name": "m", "provider_key": "up", "retries": 0}
    attachments = [
        {"guardrail": "for-key", "scope_type": "api_key", "scope_id": "ann"},
        {"guardrail": "for-team", "scope_type": "team", "scope_id": "search"},
        {"guardrail": "for-model", "scope_type": "model", "scope_id": "other"},
    ]
    gateway.reload(
        resources(
            upstream.url,
            models=[other],
            api_keys=[caller("ann"), caller("bob", team_id="search")],
            guardrails=[
                keyword("for-key", "apple"),
                keyword("for-team", "pear"),
                keyword("for-model", "plum"),
                keyword("for-all", "fig"),
            ],
            guardrail_attachments=attachments,
        )
    )

    def blocked(key: str, model: str) -> list[str]:
        words = ("apple", "pear", "plum", "fig", "nut")
        bodies = {word: {"model": model, "input": word} for word in words}
        return [word for word in words if gateway.post("/v1/responses", bodies[word], key=key).status == 422]

    assert blocked(CALLER, ALIAS) == ["fig"]
    assert blocked("sk-ann", ALIAS) == ["apple", "fig"]
    assert blocked("sk-bob", "other") == ["pear", "plum", "fig"]


def test_wait_before_a_retry_is_a_phase_of_its_own(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 1}))
    statuses = [503, 200]
    upstream.use_script(lambda _request, connection: connection.reply(statuses.pop(0), response_body()))
    entry = gateway.ledger_entry(gateway.respond())
    assert (entry["status"], len(entry["attempts"])) == (200, 2)
    assert entry["phases_ms"]["backoff"] >= 200  # the delay is at least 250 ms


# -- shutdown -------------------------------------------------------------------------------------------------------------


def test_sigterm_drains_running_requests(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 60})
    paused = PausedStream(upstream)
    stream = gateway.stream()
    stream.next_event()
    assert gateway.status("/readyz").status == 200
    gateway.process.send_signal(signal.SIGTERM)
    wait_for(lambda: gateway.status("/readyz").status == 503)
    wait_for(lambda: not accepts(gateway.port))
    assert gateway.status("/livez").status == 200
    paused.release.set()
    assert stream.received + stream.read_rest() == b"".join(paused.events)
    assert gateway.process.wait(60) == 0
    assert [row["status"] for row in gateway.ledger_rows()] == [200]


def test_requests_left_after_the_drain_time_are_ended_and_recorded(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 0.5})
    PausedStream(upstream)
    stream = gateway.stream()
    stream.next_event()
    gateway.process.send_signal(signal.SIGTERM)
    assert b'"shutting_down"' in stream.read_rest()
    assert gateway.process.wait(60) == 0
    [row] = gateway.ledger_rows()
    assert (row["error"], row["finish"], row["usage_source"]) == ("shutting_down", "cut", "reserved")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_requests_and_records_them(start: Any, upstream: Upstream, number: int) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 60})
    PausedStream(upstream)
    stream = gateway.stream()
    stream.next_event()
    gateway.process.send_signal(number)
    wait_for(lambda: not accepts(gateway.port))
    gateway.process.send_signal(number)
    assert b'"shutting_down"' in stream.read_rest()
    assert gateway.process.wait(60) == 0
    [row] = gateway.ledger_rows()
    assert (row["error"], row["finish"], row["usage_source"]) == ("shutting_down", "cut", "reserved")
    assert "killed" not in gateway.log_text()


def test_drain_does_not_wait_for_an_incomplete_request_head(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 60})
    with (
        socket.create_connection(("127.0.0.1", gateway.port)) as half,
        socket.create_connection(("127.0.0.1", gateway.port)),
    ):
        half.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAutho")
        assert gateway.respond().status == 200
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
    assert "killed" not in gateway.log_text()


@pytest.mark.slow
def test_drain_waits_for_a_reply_that_is_being_read(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 60})
    text = "A sentence of some length. " * 1_000_000
    upstream.reply_with(response_body(text))
    body = json.dumps({"model": ALIAS, "input": "Hi."}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as slow:
        slow.sendall(head.encode() + body)
        received = len(slow.recv(1000))
        gateway.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        while more := slow.recv(1 << 20):
            received += len(more)
    assert received > len(text)
    assert gateway.process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("length", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_request_with_incomplete_body_gets_503_after_the_drain_time(
    start: Any, upstream: Upstream, length: str
) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 0.5})
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\n{length}\r\n\r\n"
        caller.sendall(head.encode() + b"1\r\n{\r\n")
        wait_for(lambda: gateway.in_flight() == 1)
        gateway.process.send_signal(signal.SIGTERM)
        output = b""
        while more := caller.recv(65536):
            output += more
    assert output.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in output
    assert gateway.process.wait(60) == 0
    [row] = gateway.ledger_rows()
    assert (row["status"], row["error"]) == (503, "shutting_down")


def test_request_after_the_drain_time_gets_503_and_is_recorded(start: Any, upstream: Upstream) -> None:
    """The request arrives on a connection on which part of its head was sent before."""
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_s": 0})
    upstream.use_script(lambda _request, connection: connection.closed_within() and None)
    body = json.dumps({"model": ALIAS, "input": "Hi."}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as late:
        late.sendall(head[:50].encode())
        assert gateway.request("GET", "/livez").status == 200
        gateway.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not accepts(gateway.port))
        output = b""
        try:
            late.sendall(head[50:].encode() + body)
            while more := late.recv(65536):
                output += more
        except ConnectionError:
            pass
    assert gateway.process.wait(60) == 0
    assert upstream.requests == []
    assert "killed" not in gateway.log_text()
    rows = [(row["status"], row["error"]) for row in gateway.ledger_rows()]
    if output:  # on a busy machine the connection may already be closed
        assert output.startswith(b"HTTP/1.1 503 ")
        assert rows == [(503, "shutting_down")]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_killed_worker_is_replaced_without_losing_entries(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url))
    replies = [gateway.respond() for _ in range(5)]
    labels = 'endpoint="/v1/responses",model="gpt-4o-prod",provider="openai",status="200",stream="false",key="caller"'
    count = f"penstock_gateway_requests_total{{{labels}}} "
    wait_for(lambda: f"{count}5\n" in gateway.metrics())
    pid = gateway.config()["workers"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gateway.config()["workers"][0]["pid"] not in (0, pid))
    wait_for(lambda: accepts(gateway.port))
    replies.append(gateway.respond())
    assert [reply.status for reply in replies] == [200] * 6
    for reply in replies:
        assert gateway.ledger_entry(reply)["status"] == 200
    assert "starting a new one" in gateway.log_text()
    wait_for(lambda: f"{count}6\n" in gateway.metrics())  # counters survive the restart


def test_live_requests_of_a_killed_worker_are_recorded(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url))
    PausedStream(upstream)
    stream = gateway.stream()
    stream.next_event()
    os.kill(gateway.config()["workers"][0]["pid"], signal.SIGKILL)
    entry = gateway.ledger_entry(stream)
    assert (entry["error"], entry["finish"], entry["api_key_name"]) == ("worker_lost", "lost", "caller")
    assert (entry["model"], entry["usage_source"]) == (ALIAS, "estimated")
    assert entry["input_tokens"] > 0


def test_gateway_stays_ready_while_a_worker_is_replaced(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"workers": 2})
    assert gateway.status("/readyz").json["workers"] == {"alive": 2, "configured": 2}
    pids = [worker["pid"] for worker in gateway.config()["workers"]]
    os.kill(pids[0], signal.SIGKILL)

    def replaced() -> bool:
        assert gateway.status("/readyz").status == 200
        return gateway.config()["workers"][0]["pid"] not in (0, pids[0])

    wait_for(replaced)


def test_workers_end_when_the_main_process_is_killed(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url))
    left = set(Path("/dev/shm").glob("penstock-gateway-*"))
    gateway.process.kill()
    gateway.process.wait()
    wait_for(lambda: not accepts(gateway.port))
    # the next gateway removes the folder that the killed one left
    start(resources(upstream.url)).stop()
    assert len(set(Path("/dev/shm").glob("penstock-gateway-*")) & left) < len(left) or not left


# -- listeners ------------------------------------------------------------------------------------------------------------


def test_tls_listener_serves_replies_and_streams(start: Any, upstream: Upstream, tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    gateway: GatewayProcess = start(resources(upstream.url), listen=files)
    import http.client

    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    for stream in (False, True):
        connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=60, context=context)
        body = json.dumps({"model": ALIAS, "input": "Hi.", "stream": stream})
        connection.request("POST", "/v1/responses", body, {"Authorization": f"Bearer {CALLER}"})
        reply = Stream(connection)
        assert reply.status == 200
        assert b"Hello" in reply.read_rest()
    assert "https://" in gateway.log_text()


def test_upstream_certificate_is_verified_unless_disabled(start: Any, upstream: Upstream, tmp_path: Path) -> None:
    """A gateway behind a gateway: the outer one verifies the inner one's certificate, unless `verify` is false."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    inner: GatewayProcess = start(resources(upstream.url, model={"display_name": "inner"}), listen=files)
    key = {"api_key": CALLER, "api_base": f"https://localhost:{inner.port}"}
    resource_file = resources("", provider_key=key, model={"model_name": "inner"})
    outer: GatewayProcess = start(resource_file)
    assert outer.respond().error["type"] == "transport_error"
    outer.reload(resources("", provider_key=key | {"tls": {"verify": False}}, model={"model_name": "inner"}))
    assert outer.respond().status == 200
    stream = outer.stream()
    assert b"response.completed" in stream.read_rest()
    assert stream.headers["x-penstock-request-id"]
    trusted: GatewayProcess = start(resource_file, env={"SSL_CERT_FILE": str(tmp_path / "cert.pem")})
    assert trusted.respond().status == 200


def test_status_and_metrics_have_their_own_port(gateway: GatewayProcess, upstream: Upstream) -> None:
    for path in ("/livez", "/readyz", "/status/ready", "/status/config", "/metrics"):
        assert gateway.status(path).status == 200
    assert gateway.status("/v1/models").status == 404
    for path in ("/livez", "/readyz"):
        assert fetch(gateway.port, "GET", path).status == 200
    for port in (gateway.port, gateway.status_port):
        alive = fetch(port, "GET", "/livez")
        assert (alive.body, alive.headers["content-type"]) == (b"ok", "text/plain; charset=utf-8")
    checks = gateway.status("/livez?verbose=1").body.decode().splitlines()
    assert [line[:14] for line in checks] == ["[+] main proce", '[+] ready: {"r', "[+] resources:", "ok"]
    for path in ("/metrics", "/status/config"):
        assert fetch(gateway.port, "GET", path).status == 404
    state = gateway.config()
    assert state["applied"]["counts"] == {
        "provider_keys": 1,
        "models": 1,
        "api_keys": 1,
        "guardrails": 0,
        "rate_limit_policies": 0,
    }
    assert state["applied"]["hash"] == sha256(gateway.resources.read_text())
    gateway.respond()
    wait_for(lambda: 'penstock_gateway_tokens_total{direction="output"' in gateway.metrics())
    metrics = gateway.metrics()
    for name in ("requests_total", "request_duration_seconds_bucket", "upstream_attempts_total", "ledger_up 1"):
        assert f"penstock_gateway_{name}" in metrics


def test_access_log_has_one_line_for_each_request(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), access_log="json")
    replies = [gateway.respond(), gateway.respond(key="sk-wrong")]
    stream = gateway.stream()
    stream.read_rest()
    ids = [replies[0].id, replies[1].id, stream.id]

    def lines() -> list[Any]:
        return [json.loads(line) for line in gateway.log_text().splitlines() if line.startswith("{")]

    wait_for(lambda: len(lines()) == 3)
    assert sorted(line["request_id"] for line in lines()) == sorted(ids)
    last = next(line for line in lines() if line["request_id"] == stream.id)
    assert (last["status"], last["output_tokens"], last["model"]) == (200, 23, ALIAS)
    assert {"auth", "quota", "upstream", "total"} <= set(last["phases_ms"])


def test_port_in_use_is_a_user_error(gateway: GatewayProcess, program: Program) -> None:
    config = program.folder / "gateway.yaml"
    config.write_text(json.dumps({"listen": {"port": gateway.port, "status_port": 0}}))
    outcome = program.run("gateway", "--resources", gateway.resources, "--config", config, command="penstock")
    assert outcome.status == 2
    assert f"port {gateway.port}" in outcome.err
    config.write_text(json.dumps({"listen": {"port": 0, "status_port": gateway.status_port}}))
    outcome = program.run("gateway", "--resources", gateway.resources, "--config", config, command="penstock")
    assert outcome.status == 2
    assert f"port {gateway.status_port}" in outcome.err


# -- command line ---------------------------------------------------------------------------------------------------------


def test_validate_reports_counts_or_errors(program: Program) -> None:
    good, bad = program.folder / "good.yaml", program.folder / "bad.yaml"
    good.write_text(json.dumps(resources("http://127.0.0.1:1")))
    outcome = program.run("gateway", "validate", good, command="penstock")
    assert (outcome.status, outcome.err) == (0, "")
    assert "is valid: 1 provider key, 1 model, 1 api key, 0 guardrails, 0 rate limit policies." in outcome.out
    broken = resources("ftp://x", model={"provider_key": "nobody"}, guardrails=[{"name": "g", "kind": "bedrock"}])
    bad.write_text(json.dumps(broken))
    outcome = program.run("gateway", "validate", bad, command="penstock")
    assert outcome.status == 2
    for word in ("api_base", "nobody", "bedrock"):
        assert word in outcome.err
    outcome = program.run("gateway", "--resources", bad, command="penstock")
    assert outcome.status == 2
    assert "nobody" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [[], ["--resources"], ["--nonsense"], ["validate"], ["--demo", "--resources", "x"], ["--port", "x", "--demo"]],
)
def test_command_line_mistakes_exit_with_2(program: Program, arguments: list[str]) -> None:
    outcome = program.run("gateway", *arguments, command="penstock")
    assert outcome.status == 2
    assert outcome.err.startswith("penstock gateway: ")


def test_help_and_usage_commands_work(program: Program, gateway: GatewayProcess) -> None:
    assert "--resources" in program.run("gateway", "--help", command="penstock").out
    reply = gateway.respond()
    gateway.ledger_entry(reply)
    outcome = program.run("usage", "--ledger", f"sqlite:///{gateway.ledger}", "--by", "key", command="penstock")
    assert outcome.status == 0
    assert "caller" in outcome.out


def test_demo_answers_the_printed_curl_command(program: Program) -> None:
    running = program.start("gateway", "--demo", "--port", 0, command="penstock")
    output = ""
    assert running.process.stdout is not None
    while "Ctrl-C" not in output:
        line = running.process.stdout.readline()
        assert line, running.wait()
        output += line
    command = output[output.index("curl -sS") : output.index("Caller API key")]
    answered = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 0
    assert "AISIX" not in output
    assert "1 request was served, and its ledger was deleted" in outcome.err
    reply = json.loads(answered.stdout)
    assert reply["object"] == "response"
    assert reply["output"][0]["content"][0]["text"]


def test_demo_without_requests_reports_an_empty_ledger(program: Program) -> None:
    running = program.start("gateway", "--demo", "--port", 0, command="penstock")
    assert running.process.stdout is not None
    output = ""
    while (line := running.process.stdout.readline()) and "Ctrl-C" not in line:
        output += line
    # the printed command works before the first request
    command = output[output.index("penstock usage") :].split()
    outcome = wait_for(lambda: (done := program.run(*command[1:], command="penstock")).status == 0 and done)
    assert outcome.out == "No requests.\n"
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 0, outcome
    assert "the demo has ended; its ledger has no requests" in outcome.err


def test_foreign_files_in_the_spool_are_left_alone(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url))
    foreign = gateway.folder / "spool" / "entries-old.spool"
    foreign.write_text("another program's")
    assert gateway.ledger_entry(gateway.respond())["status"] == 200
    assert "penstock_gateway_ledger_up 1" in gateway.metrics()
    assert gateway.stop() == 0
    assert foreign.read_text() == "another program's"


def test_access_log_file_can_be_rotated(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), access_log="json", access_log_file="access.log")
    log = gateway.folder / "access.log"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    first = gateway.respond()
    wait_for(lambda: [line["request_id"] for line in lines()] == [first.id])
    assert first.id not in gateway.log_text()
    log.rename(gateway.folder / "access.log.1")  # rotation needs no signal
    second = gateway.respond()
    wait_for(lambda: [line["request_id"] for line in lines()] == [second.id])


def test_unwritable_access_log_is_a_user_error(program: Program, tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(json.dumps(resources("http://127.0.0.1:1")))
    settings = {"listen": {"port": 0, "status_port": 0}, "access_log_file": "no/such/folder/log"}
    (tmp_path / "gateway.yaml").write_text(json.dumps(settings))
    arguments = ("--resources", str(tmp_path / "resources.yaml"), "--config", str(tmp_path / "gateway.yaml"))
    outcome = program.run("gateway", *arguments, command="penstock")
    assert outcome.status == 2
    assert f"The access log {tmp_path}/no/such/folder/log cannot be written" in outcome.err


def test_memory_and_imports_stay_small(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), env={})  # the installed program, not a fork
    gateway.respond()
    pids = [gateway.process.pid, gateway.config()["workers"][0]["pid"]]
    total = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        total += int(status.split("VmRSS:")[1].split()[0])
    assert total < 100_000
    loaded = subprocess.run(
        [str(BIN / "python"), "-X", "importtime", "-c", "import penstock.gateway.serving.worker"],
        capture_output=True,
        text=True,
    ).stderr
    for heavy in ("numpy", "pydantic", "rich", "yaml", "sqlite3", "http.server"):
        assert f" {heavy}\n" not in loaded


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("limits", [{"rpd": 2}, {"tpd": 2200}])
def test_daily_limit_survives_a_restart(
    tmp_path: Path, upstream: Upstream, ending: signal.Signals, limits: dict[str, int]
) -> None:
    statuses = []
    upstream.reply_with({"id": "r", "status": "completed", "usage": {"input_tokens": 1000, "output_tokens": 100}})
    for _ in range(3):
        gateway = GatewayProcess(tmp_path, resources(upstream.url, caller={"rate_limit": limits}))
        statuses.append(gateway.respond(max_output_tokens=50).status)
        gateway.process.send_signal(ending)
        gateway.process.wait(60)
        gateway.stop()
    assert statuses == [200, 200, 429]
