"""Requests and tokens over time, for requests whose times are multiples of the grid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.metric import TokenCounts
from penstock.metrics.phase_stats import PhaseStats
from penstock.metrics.step_grid import StepGrid
from penstock.records.record import Failure
from support.records import MS, make_record, measure
from support.scratch import SCRATCH

# Request A: start 0, content at 100, 200 and 300 ms, end 320 ms; 50 input and 5 output tokens. Its second and third piece
# hold 2 tokens each. Request B: start 150, content at 250 and 350 ms, end 350 ms; 20 input and 3 output tokens. A failed
# request extends the window to 400 ms.
SEGMENTS = [
    # ms, prefilling, decoding, prefill tokens/s, decode tokens/s, tokens in flight
    (100, 1, 0, 500, 0, 50),
    (50, 0, 1, 0, 20, 51),
    (50, 1, 1, 200, 20, 71),
    (50, 1, 1, 200, 20, 73),
    (50, 0, 2, 0, 40, 74),
    (20, 0, 2, 0, 20, 76),
    (30, 0, 1, 0, 20, 21),
    (50, 0, 0, 0, 0, 0),
]


def record(start, stamps, end, **changes):
    return make_record(
        intended=start * MS,
        start=start * MS,
        end=end * MS,
        stamps=[(stamp - start) * MS for stamp in stamps],
        **({"pieces": [1] * len(stamps)} | changes),
    )


REQUESTS = [
    (record(0, [100, 200, 300], 320), TokenCounts(input=50, output=5)),
    (record(150, [250, 350], 350), TokenCounts(input=20, output=3)),
    (record(0, [], 400, failure=Failure("Timeout", "late", "server")), TokenCounts()),
]


def phase_metrics(tmp_path, requests):
    phase = PhaseStats(SCRATCH)
    for added, counts in requests:
        phase.add(added, measure(added, counts))
    return phase.metrics()


def per_ms(value):
    """Return the value of a function of a segment for each millisecond."""
    return np.array([value(*levels) for duration, *levels in SEGMENTS for _ in range(duration)], dtype=float)


PREFILLING = per_ms(lambda p, d, pt, dt, t: p)
DECODING = per_ms(lambda p, d, pt, dt, t: d)
PREFILL = per_ms(lambda p, d, pt, dt, t: pt)
DECODE = per_ms(lambda p, d, pt, dt, t: dt)
TOKENS = per_ms(lambda p, d, pt, dt, t: t)
EXPECTED = {
    "effective_prefill_concurrency": PREFILLING,
    "effective_decode_concurrency": DECODING,
    "effective_prefill_throughput": PREFILL,
    "effective_decode_throughput": DECODE,
    "effective_total_throughput": PREFILL + DECODE,
    "effective_prefill_throughput_per_user": PREFILL / np.maximum(PREFILLING, 1),
    "effective_decode_throughput_per_user": DECODE / np.maximum(DECODING, 1),
    "tokens_in_flight": TOKENS,
    "active_prefill_throughput": PREFILL[PREFILLING > 0],
    "active_decode_throughput": DECODE[DECODING > 0],
    "active_total_throughput": (PREFILL + DECODE)[PREFILLING + DECODING > 0],
    "active_prefill_throughput_per_user": (PREFILL / np.maximum(PREFILLING, 1))[PREFILLING > 0],
    "active_decode_throughput_per_user": (DECODE / np.maximum(DECODING, 1))[DECODING > 0],
}
AVERAGES = {
    "effective_prefill_concurrency": 200 / 400,
    "effective_decode_concurrency": (220 + 100) / 400,
    "effective_prefill_throughput": (50 + 20) / 0.4,
    "effective_decode_throughput": (4 + 2) / 0.4,
    "effective_total_throughput": (70 + 6) / 0.4,
    "active_prefill_throughput": 70 / 0.2,
    "active_decode_throughput": 6 / 0.25,
    "active_total_throughput": 76 / 0.35,
}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    return phase_metrics(tmp_path_factory.mktemp("phase"), REQUESTS)


@pytest.mark.parametrize(("tag", "values"), EXPECTED.items())
def test_statistics_are_those_of_every_millisecond(metrics, tag, values):
    stats = metrics[tag]
    assert (stats.avg, stats.std) == pytest.approx((values.mean(), values.std()))
    assert (stats.min, stats.max) == pytest.approx((values.min(), values.max()))
    percentiles = [np.percentile(values, q, method="inverted_cdf") for q in (50, 90, 95, 99)]
    assert [stats.p50, stats.p90, stats.p95, stats.p99] == pytest.approx(percentiles)
    assert stats.count is stats.sum is stats.p1 is None


@pytest.mark.parametrize(("tag", "average"), AVERAGES.items())
def test_averages_are_totals_over_time(metrics, tag, average):
    assert metrics[tag].avg == pytest.approx(average)


def test_pieces_that_share_a_stamp_arrive_together(tmp_path):
    """7 tokens on 4 pieces: 1, then 2 each. Two pieces arrive at 200 ms and one at 300 ms."""
    counts = TokenCounts(input=10, output=7)
    metrics = phase_metrics(tmp_path, [(record(0, [100, 200, 300], 400, pieces=[1, 2, 1]), counts)])
    assert metrics["effective_decode_throughput"].max == pytest.approx(40)
    assert metrics["effective_decode_throughput"].avg == pytest.approx(6 / 0.4)
    assert metrics["tokens_in_flight"].avg == pytest.approx((10 + 11 + 15 + 17) / 4)


def test_times_off_the_grid_keep_the_averages(tmp_path):
    requests = [
        (make_record(at=at), TokenCounts(input=100, output=5)) for at in (0, 13.37, 21.4242, 333.3, 5_000_000.1)
    ]
    duration_s = (requests[-1][0].end - requests[0][0].start) / 1e9
    metrics = phase_metrics(tmp_path, requests)
    assert metrics["effective_decode_throughput"].avg == pytest.approx(5 * 4 / duration_s)
    assert metrics["effective_prefill_throughput"].avg == pytest.approx(5 * 100 / duration_s)
    assert metrics["effective_prefill_concurrency"].avg == pytest.approx(5 * 0.05 / duration_s)
    assert metrics["active_decode_throughput_per_user"].avg == pytest.approx(4 / 0.055, rel=0.1)


def test_replies_that_are_not_streamed_have_only_the_concurrency(tmp_path):
    metrics = phase_metrics(tmp_path, [(record(0, [100], 100, streamed=False), TokenCounts(input=5, output=9))])
    found = {tag for tag in metrics if tag.startswith(("effective_", "active_", "tokens_in"))}
    assert found == {"effective_concurrency", "effective_latency"}


def test_throughput_needs_token_counts(tmp_path):
    metrics = phase_metrics(tmp_path, [(record(0, [100, 200], 200), TokenCounts())])
    assert metrics["effective_decode_concurrency"].avg == pytest.approx(0.5)
    assert not {tag for tag in metrics if "_throughput" in tag and tag.startswith(("effective", "active"))}
    assert "tokens_in_flight" not in metrics


@given(st.lists(st.tuples(st.integers(-200, 400), st.integers(1, 100), st.integers(1, 9)), min_size=1, max_size=20))
def test_grid_holds_the_exact_integrals_also_after_its_width_has_doubled(intervals):
    truth = np.zeros(1200)  # from -400 to 800
    grid = StepGrid(1, width_ns=10, most_bins=16)
    for begin, length, height in intervals:
        truth[begin + 400 : begin + 400 + length] += height
        grid.add(np.array([begin, begin + length]), {0: np.array([height, -height], dtype=float)})
    bins = 400 // grid.width
    expected = truth[400 - bins * grid.width : 400 + bins * grid.width].reshape(-1, grid.width).sum(axis=1)
    assert grid.integrals(0, -bins, bins) == pytest.approx(expected, abs=1e-9)
