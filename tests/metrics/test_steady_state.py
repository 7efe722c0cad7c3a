"""Steady state and censoring, on series that are made by hand."""

import numpy as np
import pytest
from tests.support.records import MS, make_record, with_values

from penstock.metrics.request_series import SeriesRecorder
from penstock.metrics.steady_state import mser5, steady_state, steady_window
from penstock.records.record import Failure
from support.scratch import SCRATCH


def table(path, starts_ms, latencies_ms, workers=None):
    recorder = SeriesRecorder(SCRATCH)
    for i, (start, latency) in enumerate(zip(starts_ms, latencies_ms, strict=True)):
        begin, end = int(start * MS), int((start + latency) * MS)
        record = make_record(
            number=i, worker=0 if workers is None else workers[i], intended=begin, start=begin, end=end
        )
        values = {"request_latency": latency, "time_to_first_token": latency / 2}
        recorder.add(*with_values(record, values), None)
    return recorder.table()


@pytest.mark.parametrize("ramp", [0, 100, 400])
def test_ramp_of_known_length_is_cut(ramp):
    rng = np.random.default_rng(5)
    values = 100 + rng.standard_normal(2000)
    values[:ramp] += np.linspace(80, 3, ramp)
    assert ramp - 30 <= mser5(values) <= ramp + 60


def test_closed_loop_ends_when_a_slot_is_not_refilled(tmp_path):
    """Two slots of 10 ms each, started 5 ms apart; the last start is at 995 ms."""
    starts = [5.0 * i for i in range(200)]
    series = table(tmp_path, starts, [10.0] * 200)
    assert steady_window(series, open_loop=False) == (0, 1000 * MS)
    assert steady_window(series, open_loop=True) == (0, 995 * MS)


def test_worker_that_ends_first_ends_the_window(tmp_path):
    starts = [5.0 * i for i in range(200)]
    workers = [0 if i % 2 or i > 100 else 1 for i in range(200)]
    assert steady_window(table(tmp_path, starts, [10.0] * 200, workers), open_loop=False) == (0, 510 * MS)


def test_figures_of_the_window_leave_out_the_ramp(tmp_path):
    latencies = [100.0] * 100 + [10.0] * 900
    starts = np.cumsum([0.0, *latencies[:-1]])
    series = table(tmp_path, starts, latencies)
    window = steady_window(series, open_loop=False)
    steady = steady_state(series, window, {})
    assert steady.head == 100
    assert steady.metrics["request_latency"].avg == 10
    assert steady.metrics["request_throughput"].avg == pytest.approx(100, rel=0.01)
    assert steady.begin_s == 10


def test_rate_of_the_window_is_in_its_interval(tmp_path):
    """Ten slots in lockstep: the window begins and ends within a round, so it counts other requests than whole rounds do."""
    starts = [100.0 * (i // 10) for i in range(400)]
    series = table(tmp_path, starts, [100.0] * 400)
    steady = steady_state(series, (40 * MS, 3_970 * MS), {})
    rate, interval = steady.metrics["request_throughput"].avg, steady.intervals["request_throughput"]["avg"]
    assert rate == pytest.approx(390 / 3.93)
    assert interval.low <= rate <= interval.high


def test_steady_state_is_the_longest_time_between_outages(tmp_path):
    """One request after the other, each 10 ms; the server is down from 1 s to 3 s and from 8 s to 10 s."""
    recorder = SeriesRecorder(SCRATCH)
    lost = Failure("ConnectionRefused", "refused", "server")
    for at in [*range(0, 1000, 10), *range(3000, 8000, 10), *range(10_000, 12_000, 10)]:
        latency = 10.0 if at < 3000 or at >= 3500 else 9.0 + (3500 - at) / 10  # the server warms up for 0.5 s
        record = make_record(number=at, at=at, end=int((at + 10) * MS))
        recorder.add(*with_values(record, {"request_latency": latency}), None)
    for at in [*range(1100, 2900, 100), *range(8100, 9900, 100)]:
        recorder.add(*with_values(make_record(number=at, at=at, end=(at + 1) * MS, failure=lost, stamps=[]), {}), None)
    begin, end = steady_window(recorder.table(), open_loop=False)
    assert begin / MS == pytest.approx(3500, abs=100)
    assert end / MS == pytest.approx(8000, abs=1)


def test_few_requests_have_no_steady_state(tmp_path):
    assert steady_window(table(tmp_path, range(20), [1.0] * 20), open_loop=True) is None
