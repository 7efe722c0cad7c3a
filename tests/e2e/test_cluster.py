"""Runs on a real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.records.log import RunLog
from support.programs import Program, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LIMIT_S = 240.0
"""Ray starts within some ten seconds on two busy cores; only a run that hangs takes this long."""
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def received(server: Any) -> int:
    """Return how many requests the mock has answered."""
    return len(server.log.read_bytes().splitlines())


def records(folder: Path) -> list[Any]:
    """Return the records of a run, or of all points of an experiment."""
    path = str(folder / "log")
    found = []
    for point in [point.index for point in RunLog.read_points(path)] or [None]:
        log = RunLog(path, point=point)
        found += log.records()
        log.close()
    return found


def test_nodes_send_one_schedule_and_a_lost_node_is_named(cluster: Any, mock, program: Program) -> None:
    node = cluster.add_node(**NODE)
    server = mock(ttft=10, tokens=3)
    flags = ["--cluster", cluster.address, "--request-rate", 50, "--arrival-pattern", "constant"]
    done = program.profile(server.url, *flags, "--request-count", 100, timeout=LIMIT_S)
    assert done.status == 0, done
    sent = sorted(records(done.folder), key=lambda record: record.number)
    assert [record.number for record in sent] == list(range(100))
    # Each worker has every second request, and the times of both are those of one schedule.
    assert [record.worker for record in sent] == [number % 2 for number in range(100)]
    first = sent[0].intended
    assert [record.intended - first for record in sent] == pytest.approx([n * 20_000_000 for n in range(100)], abs=3)
    assert received(server) == 100
    nodes = done.summary["certificate"]["nodes"]
    assert [each["workers"] for each in nodes] == [[0], [1]]
    assert len({each["node"] for each in nodes}) == 2
    # Both nodes have the clock of this machine, so the measured offset is within its own error.
    assert all(abs(each["clock_offset_ms"]) <= each["clock_error_ms"] for each in nodes)

    # A sweep has another dataset for each length, which the nodes get while they run.
    sweep = ["--cluster", cluster.address, "--isl", "10,20", "--concurrency", 4, "--request-count", 12]
    swept = program.profile(server.url, *sweep, "--tokenizer", "builtin", texts=None, timeout=LIMIT_S)
    assert swept.status == 0, swept
    log = RunLog.read_points(str(swept.folder / "log"))
    assert len(log) == 2
    by_phase = Counter(record.phase for record in records(swept.folder))
    assert by_phase == {0: 12, 1: 12}

    before = received(server)
    running = program.begin(server.url, *flags, "--request-count", 1500)
    wait_for(lambda: received(server) > before + 100, LIMIT_S, what="some load")
    cluster.remove_node(node, allow_graceful=False)
    outcome = running.wait(LIMIT_S)
    assert outcome.status == 1, outcome
    lost = outcome.summary["incomplete_reason"]
    assert "was lost with its node" in lost
    assert "its share is 750 of the 1,500 requests" in lost
    (worker,) = {number for number in (0, 1) if f"Worker {number} of 2" in lost}
    kept = [record for record in records(running.folder) if record.worker != worker]
    assert len(kept) == 750  # the other node has finished
    assert outcome.summary["certificate"]["verdict"] == "INVALID"


def test_missing_cluster_is_reported_in_one_sentence(program: Program) -> None:
    done = program.run("profile", "-m", "m", "--url", "mock://", "--cluster", "127.0.0.1:1", timeout=LIMIT_S)
    assert done.status == 2, done
    assert "There is no Ray cluster at --cluster 127.0.0.1:1" in done.err
    assert "Traceback" not in done.err
