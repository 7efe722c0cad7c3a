"""Two local Ray nodes with one worker each, compared with two local workers, at a load that takes 40 % of two cores: the same
number of requests at the same intended times, how late they were sent, and the verdict of the certificate.

python -m benchmarks.cluster
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cpu_time import cpu_s
from benchmarks.far_end import FarEnd, far_end, line, profile
from penstock.records.log import RunLog

_SECONDS = 5
_TRIAL_RATE = 500
_CORES, _SHARE = 2, 0.4
_ROUNDS = 3
_TOLERANCE_NS = 3
"""Times of a node are converted to the clock of the run."""


class Measured(NamedTuple):
    intended: np.ndarray[Any, np.dtype[np.int64]]
    """When each request was due, in ns after the first one, by its number."""
    late_ms: tuple[float, float]
    """Lateness of the sends, p50 and p99."""
    verdict: str
    load: float
    """CPU time of the workers and the server, as a share of two cores."""

    def text(self) -> str:
        return f"{self.late_ms[0]:.2f} and {self.late_ms[1]:.2f} ms, {self.verdict}"


def measure(server: FarEnd, rate: float, *where: str) -> Measured:
    load = ("--request-rate", f"{rate:.0f}", "--request-count", f"{rate * _SECONDS:.0f}", "--random-seed", "1")
    prompts = ("--isl", "50", "--num-dataset-entries", "100", "--osl", "20", "--streaming", "--use-server-token-count")
    before = cpu_s(server.pid)
    with profile(server.url, *load, *prompts, *where) as run:
        served = cpu_s(server.pid) - before
        log = RunLog(os.path.join(run.folder, "log"))
        records = sorted((record.number, record.intended) for record in log.records())
        worked = sum(report.machine.cpu_s for report in log.reports("profiling"))
        figures = run.certificate["figures"]
        times = np.array([intended for _, intended in records], np.int64)
        return Measured(
            times - times[0],
            (figures["send_lateness_p50_ms"], figures["send_lateness_p99_ms"]),
            run.certificate["verdict"],
            (worked + served) / _SECONDS / _CORES,
        )


@contextmanager
def ray_nodes() -> Iterator[str]:
    """Start a Ray cluster of two nodes on this machine, and yield its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _is_same_schedule(one: Measured, other: Measured) -> bool:
    same_count = len(one.intended) == len(other.intended)
    return same_count and bool(np.abs(one.intended - other.intended).max() <= _TOLERANCE_NS)


def main() -> bool:
    with far_end(20) as server, ray_nodes() as address:
        local, cluster = ("--workers-max", "2"), ("--cluster", address, "--workers-max", "1")
        trial = measure(server, _TRIAL_RATE, *local)
        rate = _TRIAL_RATE * _SHARE / trial.load
        same_schedule = False
        for _ in range(_ROUNDS):  # other programs on the machine can change the verdict of one of two runs
            here, there = measure(server, rate, *local), measure(server, rate, *cluster)
            same_schedule = _is_same_schedule(here, there)
            same_verdict = here.verdict == there.verdict != "INVALID"
            if not same_schedule or same_verdict:
                break
    passed = same_schedule and same_verdict
    line(
        f"two Ray nodes, {rate:,.0f} requests/s, {there.load:.0%} of two cores",
        there.text(),
        f"two local workers {here.text()}",
        f"{len(there.intended):,} requests of {len(here.intended):,}, {'the same' if same_schedule else 'other'} times",
        passed,
    )
    return passed


if __name__ == "__main__":
    raise SystemExit(not main())
