"""A run on a Ray cluster whose nodes are hosts in network namespaces, with clocks of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.records.log import RunLog
from support.network_hosts import Host, why_no_hosts
from support.programs import BIN, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIMIT_S = 240.0
"""Only a run that hangs takes this long; Ray starts within some ten seconds on two busy cores."""
AHEAD_S = 1000
REQUESTS, RATE = 60, 20
RAY = (
    sys.executable,
    "-m",
    "ray.scripts.scripts",
    "start",
    "--block",
    "--num-cpus",
    1,
    "--object-store-memory",
    80 << 20,
)
QUICK = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray notices within half a minute that a node is silent; by default it takes more than one."""
COUNT_NODES = (
    "import ray; ray.init(address='auto', logging_level=50); print(sum(node['Alive'] for node in ray.nodes()))"
)


class Hosts:
    """A server, the head of a Ray cluster and another node of it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._environment = os.environ | QUICK
        self.server = stack.enter_context(Host("server", "10.77.0.1", bridge=True))
        self.head = stack.enter_context(Host("head", "10.77.0.2"))
        self.node = stack.enter_context(Host("node", "10.77.0.3", clock_s=AHEAD_S))
        for host in (self.head, self.node):
            host.connect(self.server)
        self.start(self.server, BIN / "aiperf", "mock", "--host", self.server.address, "--ttft", 10, "--tokens", 3)
        for host, *flags in (
            (self.head, "--head", "--port", 6379, "--include-dashboard", "false"),
            (self.node, "--address", f"{self.head.address}:6379"),
        ):
            self.start(host, *RAY, "--node-ip-address", host.address, *flags)
        wait_for(lambda: self._nodes() == "2\n", LIMIT_S, "a cluster of two nodes")

    def start(self, host: Host, *words: Any) -> subprocess.Popen[str]:
        output = self._stack.enter_context((self._folder / f"{host.name}.log").open("a"))
        process = host.start(*words, env=self._environment, stdout=output, stderr=subprocess.STDOUT)
        self._stack.callback(process.wait, LIMIT_S)
        self._stack.callback(process.kill)
        return process

    def _nodes(self) -> str:
        count = self.head.start(
            sys.executable, "-c", COUNT_NODES, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return count.communicate(timeout=LIMIT_S)[0]

    def begin(self, artifacts: Path, requests: int) -> subprocess.Popen[str]:
        prompts = self._folder / "prompts.jsonl"
        prompts.write_text('{"text": "Hello."}\n')
        load = ("--request-rate", RATE, "--arrival-pattern", "constant", "--request-count", requests)
        return self.start(
            self.head,
            *(BIN / "aiperf", "profile", "--cluster", "auto", "-m", "m", "--url", f"http://{self.server.address}:8000"),
            *("--input-file", prompts, "--use-server-token-count", "--artifact-dir", artifacts, *load),
        )


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Hosts(stack, tmp_path)


def records(folder: Path) -> list[Any]:
    log = RunLog(str(folder / "log"))
    return sorted(log.records(), key=lambda record: record.number)


def check_nodes(folder: Path) -> dict[str, Any]:
    """Return the summary; both nodes have a certificate and the offsets of their clocks, and sent one schedule."""
    summary: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    nodes = summary["certificate"]["nodes"]
    assert [node["node"] for node in nodes] == ["head", "node"]
    for node, offset_ms in zip(nodes, (0, AHEAD_S * 1000), strict=True):
        assert abs(node["clock_offset_ms"] - offset_ms) <= node["clock_error_ms"]
    found = records(folder)
    first = found[0].intended
    assert [record.worker for record in found] == [record.number % 2 for record in found]
    # The times of both nodes are those of one clock: each request starts when the schedule wants it, or later.
    assert all(
        record.intended - first == pytest.approx(record.number * 1e9 / RATE, abs=3) and record.start >= record.intended
        for record in found
    )
    return summary


def test_hosts_send_one_schedule_and_a_silent_host_is_named(hosts: Hosts, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert hosts.begin(whole, REQUESTS).wait(LIMIT_S) == 0, (tmp_path / "head.log").read_text()
    nodes = check_nodes(whole)["certificate"]["nodes"]
    workers = [(each["worker"], each["figures"]["requests"]) for node in nodes for each in node["by_worker"]]
    assert workers == [(0, REQUESTS // 2), (1, REQUESTS // 2)]
    assert [record.number for record in records(whole)] == list(range(REQUESTS))

    cut = tmp_path / "cut"
    running = hosts.begin(cut, 10 * REQUESTS)
    log = cut / "log" / "worker-1.log"
    wait_for(lambda: log.exists() and log.stat().st_size, LIMIT_S, "records of the node")
    hosts.node.cut_off()
    assert running.wait(LIMIT_S) == 1, (tmp_path / "head.log").read_text()
    summary = check_nodes(cut)
    lost = summary["incomplete_reason"]
    assert "Worker 1 of 2 was lost with its node node" in lost
    assert "its share is 300 of the 600 requests" in lost
    sent = records(cut)
    assert sum(record.worker == 0 for record in sent) == 300  # the head has finished
    assert 0 < sum(record.worker == 1 for record in sent) < 300
    assert summary["certificate"]["nodes"][1]["reasons"] == ["1 of 1 worker did not report."]
