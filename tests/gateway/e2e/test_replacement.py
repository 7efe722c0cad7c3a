"""Replacement of processes while callers connect: hanging workers, a new configuration, a new gateway."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, resources
from support.programs import Program, wait_for
from support.scripted_upstream import Upstream


@contextmanager
def callers(gateway: GatewayProcess) -> Iterator[list[Any]]:
    """A caller that opens a connection for each of its requests, and one that keeps its connection until the gateway
    announces its end. Yields the statuses or exceptions."""
    outcomes: list[Any] = []
    stop = threading.Event()

    def call(keep: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        body = json.dumps({"model": ALIAS, "input": "Hi."})
        while not stop.is_set():
            try:
                connection.request("POST", "/v1/responses", body, {"Authorization": f"Bearer {CALLER}"})
                response = connection.getresponse()
                response.read()
                outcomes.append(response.status)
            except (OSError, http.client.HTTPException) as error:
                outcomes.append(error)
            if not keep:
                connection.close()
        connection.close()

    threads = [threading.Thread(target=call, args=[keep]) for keep in (False, True)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_stopped_worker_is_not_counted_and_is_replaced(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"workers": 2, "worker_timeout_s": 4})
    pid = gateway.config()["workers"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: gateway.status("/readyz").json["workers"]["alive"] == 1)
    wait_for(lambda: gateway.config()["workers"][0]["pid"] not in (0, pid))
    wait_for(lambda: gateway.status("/readyz").json["workers"]["alive"] == 2)
    assert 'penstock_gateway_worker_restarts_total{worker="0"} 1' in gateway.metrics()
    assert [gateway.respond().status for _ in range(10)] == [200] * 10


@pytest.mark.slow
def test_new_gateway_takes_over_without_losing_a_connection(start: Any, upstream: Upstream) -> None:
    old: GatewayProcess = start(resources(upstream.url))
    ports = {"port": old.port, "status_port": old.status_port}
    with callers(old) as outcomes:
        new: GatewayProcess = start(resources(upstream.url), listen=ports, arguments=("--take-over",))
        assert old.process.wait(60) == 0
        served = len(outcomes)
        wait_for(lambda: len(outcomes) > served + 20)
    assert set(outcomes) == {200}
    assert new.status("/readyz").status == 200
    wait_for(lambda: len(old.ledger_rows()) + len(new.ledger_rows()) >= served)  # entries arrive with a delay
    assert "another gateway has taken over" in old.log_text()


def test_failed_take_over_leaves_the_running_gateway_alone(
    gateway: GatewayProcess, upstream: Upstream, program: Program
) -> None:
    settings = {"listen": {"port": gateway.port, "status_port": 0}, "ledger": {"spool": "spool"}}
    (program.folder / "gateway.yaml").write_text(json.dumps(settings))
    (program.folder / "resources.yaml").write_text("models: []\n")
    arguments = ("--resources", "resources.yaml", "--config", "gateway.yaml", "--take-over")
    outcome = program.run("gateway", *arguments, command="penstock")
    assert outcome.status == 2
    assert "_format_version is missing" in outcome.err
    assert gateway.respond().status == 200
    assert gateway.process.poll() is None


def test_changed_certificate_is_used_and_sigint_ends_without_notice(
    start: Any, upstream: Upstream, tmp_path: Path
) -> None:
    def make_certificate(name: str) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", f"/CN={name}", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
            check=True, capture_output=True,
        )  # fmt: skip

    def served_certificate() -> str:
        return ssl.get_server_certificate(("127.0.0.1", gateway.port))

    make_certificate("first")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    gateway: GatewayProcess = start(resources(upstream.url), listen=files | {"drain_notice_s": 600})
    first = served_certificate()
    make_certificate("second")
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: served_certificate() != first)
    wait_for(lambda: "the configuration was reloaded" in gateway.log_text())
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait(60) == 0


def test_changed_gateway_yaml_is_applied_to_new_requests(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), watch=True)
    path = gateway.folder / "gateway.yaml"
    settings = json.loads(path.read_text())
    with callers(gateway) as outcomes:
        path.write_text("listen: {drain_s: soon}\n")
        wait_for(lambda: "The previous configuration stays in use" in gateway.log_text())
        settings["listen"] |= {"max_body_bytes": 100, "status_port": 1}
        path.write_text(json.dumps(settings))
        wait_for(lambda: gateway.respond("x" * 200).status == 413)
    assert set(outcomes) == {200}
    assert "changes of listen.status_port need a restart" in gateway.log_text()


def test_sigterm_is_announced_before_the_listener_closes(start: Any, upstream: Upstream) -> None:
    """A load balancer sees /readyz fail while requests are still accepted. A second signal ends the notice."""
    gateway: GatewayProcess = start(resources(upstream.url), listen={"drain_notice_s": 600})
    gateway.process.send_signal(signal.SIGTERM)
    wait_for(lambda: gateway.status("/readyz").status == 503)
    assert gateway.respond().status == 200
    assert gateway.request("GET", "/readyz").status == 503
    assert gateway.request("GET", "/livez").status == 200
    assert gateway.status("/livez").status == 200
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait(60) == 0
