"""Whether a server falls behind the rate, on simulated queues and on series with known rates."""

import numpy as np
import pytest
from benchmarks.overload import QUEUES, shares

from penstock.metrics.overload import find_overload

MS, SECOND = 1_000_000, 1_000_000_000
BY_NAME = {queue.name: queue for queue in QUEUES}


def queue(rate: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return when requests are due and end at a queue with one server that takes 10 ms per request on average."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1000 / rate, count))
    services = rng.exponential(10.0, count)
    free, ends = 0.0, []
    for at, service in zip(due, services, strict=True):
        free = max(free, at) + service
        ends.append(free)
    return due * MS, np.array(ends) * MS


@pytest.mark.parametrize(("rate", "overloaded"), [(50, False), (80, False), (150, True), (300, True)])
def test_overload_is_found_and_a_busy_queue_is_not_called_so(rate, overloaded):
    for seed in range(3):
        assert (find_overload(*queue(rate, 1500, seed)) is not None) is overloaded


def test_rates_are_those_of_the_time_in_which_the_queue_grew():
    """100 requests/s are due, and 80 are completed: after 20 s, 400 are in flight."""
    due = np.arange(2000) * SECOND / 100
    overload = find_overload(due, np.arange(1, 2001) * SECOND / 80)
    assert overload is not None
    assert overload.due == pytest.approx(100, rel=0.01)
    assert overload.completed == pytest.approx(80, rel=0.01)
    assert (overload.before, overload.after) == pytest.approx((40, 400), abs=3)
    assert "completed 80.0 of 100 requests/s; the queue grew, from" in overload.sentence


@pytest.mark.parametrize("name", ["M/M/4 at 0.95", "gamma arrivals at 0.95", "batch arrivals at 0.95", "M/G/4 at 0.9"])
def test_stable_queue_is_seldom_called_overloaded(name):
    found, ended = shares(BY_NAME[name], 3, 60, 1_000)
    assert max(found, ended) <= 0.05


def test_load_far_above_the_capacity_is_nearly_always_found():
    found, ended = shares(BY_NAME["M/M/4 at 1.3"], 3, 60, 1_000)
    assert found >= 0.85
    assert ended >= 0.6


def test_rise_at_the_start_is_no_overload():
    """A server without a queue, where requests take 10 s: the number in flight rises for 10 s."""
    due = np.arange(2000) * SECOND / 100
    for latency_s in (1, 5, 10, 19):
        assert find_overload(due, due + latency_s * SECOND) is None


def test_rise_of_the_rate_is_no_overload_while_latencies_stay():
    rates = np.linspace(10, 100, 2000)
    due = np.cumsum(1 / rates) * SECOND
    assert find_overload(due, due + 0.1 * SECOND) is None


def test_few_requests_tell_nothing():
    due = np.arange(99) * SECOND / 100
    assert find_overload(due, np.arange(1, 100) * SECOND / 50) is None
