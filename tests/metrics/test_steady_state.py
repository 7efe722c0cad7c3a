"""Steady state and censoring, on series that are made by hand."""

import numpy as np
import pytest
from tests.support.records import MS, make_record, with_values

from penstock.metrics.request_series import SeriesRecorder
from penstock.metrics.steady_state import mser5, steady_state, steady_window
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


def test_few_requests_have_no_steady_state(tmp_path):
    assert steady_window(table(tmp_path, range(20), [1.0] * 20), open_loop=True) is None
