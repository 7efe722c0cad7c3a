"""Runs on a real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def ray_head() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        _add_node(cluster, include_dashboard=False)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def cluster(ray_head: Any) -> Any:
    """A cluster of two nodes."""
    while len(ray_head.list_all_nodes()) < 2:
        _add_node(ray_head)
    return ray_head


def _add_node(cluster: Any, **more: Any) -> None:
    """Ray gives up if a node does not start within 30 s, which can happen on a very busy machine."""
    for attempts_left in (2, 1, 0):
        try:
            cluster.add_node(**NODE, **more)
            return
        except Exception:  # Ray raises nothing more specific
            if not attempts_left:
                raise


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
    return found


def test_search_runs_on_a_cluster(cluster: Any, mock, program: Program) -> None:
    server = mock(ttft=5, tokens=2)
    search = ["--streaming", "--find-max", "concurrency", "--slo", "p90 time_to_first_token<60000", "--search-max", 4]
    done = program.profile(server.url, "--cluster", cluster.address, *search, timeout=LIMIT_S)
    assert done.status == 0, done
    assert "The objectives are met up to concurrency 4, the highest that was tried" in done.out
    levels = json.loads(done.text("profile_export_penstock_search.json"))["levels"]
    assert [(level["concurrency"], level["decision"]) for level in levels] == [(1, "pass"), (2, "pass"), (4, "pass")]


def test_nodes_send_one_schedule_and_a_lost_node_is_named(cluster: Any, mock, program: Program) -> None:
    node = next(iter(cluster.worker_nodes))
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

    before, copy = received(server), program.folder / "copy"
    running = program.begin(server.url, *flags, "--request-count", 1000, "--results-url", f"file://{copy}")
    wait_for(lambda: received(server) > before + 100, LIMIT_S, what="some load")
    cluster.remove_node(node, allow_graceful=False)
    outcome = running.wait(LIMIT_S)
    assert outcome.status == 1, outcome
    lost = outcome.summary["incomplete_reason"]
    assert "was lost with its node" in lost
    assert "its share is 500 of the 1,000 requests" in lost
    (worker,) = {number for number in (0, 1) if f"Worker {number} of 2" in lost}
    kept = [record for record in records(running.folder) if record.worker != worker]
    assert len(kept) == 500  # the other node has finished
    assert outcome.summary["certificate"]["verdict"] == "INVALID"

    # The rest is sent by the node that is left, as workers 2 and 3, and the results are copied again.
    resumed = program.run("profile", "--resume", running.folder, timeout=LIMIT_S)
    assert resumed.status == 0, resumed
    assert {record.number for record in records(running.folder)} == set(range(1000))
    summary = json.loads((copy / "profile_export_aiperf.json").read_text())
    assert [each["workers"] for each in summary["certificate"]["nodes"]] == [[2, 3]]
    assert len(summary["gaps"]) == 1
    assert summary["is_complete"] is True


def test_missing_cluster_is_reported_in_one_sentence(program: Program) -> None:
    done = program.run("profile", "-m", "m", "--url", "mock://", "--cluster", "127.0.0.1:1", timeout=LIMIT_S)
    assert done.status == 2, done
    assert "There is no Ray cluster at --cluster 127.0.0.1:1" in done.err
    assert "Traceback" not in done.err
