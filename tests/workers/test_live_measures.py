"""What a worker measures while a phase runs."""

from __future__ import annotations

import random

import pytest

from penstock.records.record import Failure, Record, Usage
from penstock.wire.stats import DurationSketch
from penstock.workers.live_measures import LiveMeasures
from penstock.workers.messages import ErrorCause


def record(**fields: object) -> Record:
    made = Record(0, 0, 0, 0, 0, 0, 0, "request", "correlation", 0, 0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.99])
def test_quantile_of_a_sketch_is_within_a_bucket_of_the_exact_one(q: float) -> None:
    values = sorted(round(random.Random(n).lognormvariate(17, 1.5)) for n in range(2000))
    parts = [DurationSketch(), DurationSketch(), DurationSketch()]
    for number, value in enumerate(values):
        parts[number % 3].add(value)
    merged = DurationSketch()
    for part in parts:
        merged.merge(part)
    assert merged.n == 2000
    assert merged.mean == pytest.approx(sum(values) / 2000)
    assert merged.quantile(q) == pytest.approx(values[int(q * 2000)], rel=0.07)


def test_sketch_of_one_value_has_it_as_every_quantile() -> None:
    sketch = DurationSketch()
    sketch.add(50_000_000)
    assert sketch.quantile(0.5) == pytest.approx(50_000_000, rel=0.0625)
    assert sketch.quantile(1) == 50_000_000
    assert DurationSketch().quantile(0.5) == 0


def test_sketch_since_an_earlier_one_has_only_the_later_values() -> None:
    sketch, earlier = DurationSketch(), DurationSketch()
    for value in (0, 1_000, 1_000):
        sketch.add(value)
        earlier.add(value)
    for value in (1_000, 9_000_000):
        sketch.add(value)
    later = sketch.since(earlier)
    assert later.n == 2
    assert sum(later.counts.values()) == 2
    assert later.quantile(1) == 9_000_000


def test_tokens_are_those_of_the_server_or_else_chunks() -> None:
    live = LiveMeasures()
    live.count(record(pieces=[1, 2], stamps=[10, 20], reads=3, usage=Usage(completion=7)), sampled=False)
    live.count(record(pieces=[1, 2], stamps=[10, 20], reads=3, coalesced=[1]), sampled=False)
    assert (live.tokens, live.tokens_reads, live.stamps, live.coalesced_stamps) == (10, 6, 4, 1)
    assert live.latency.n == live.first_content.n == live.chunk_gap.n == 0


def test_sampled_stream_gives_its_latency_first_content_and_gaps() -> None:
    live = LiveMeasures()
    live.count(record(start=100, end=5_000, stamps=[1_000, 3_000, 4_000], pieces=[1, 1, 1]), sampled=True)
    assert (live.latency.largest, live.first_content.largest, live.chunk_gap.largest) == (4_900, 1_000, 2_000)
    assert live.chunk_gap.n == 2


def test_gaps_of_a_long_stream_are_thinned_out() -> None:
    live = LiveMeasures()
    live.count(record(stamps=list(range(0, 100_000_000, 10_000)), pieces=[1] * 10_000), sampled=True)
    assert 64 <= live.chunk_gap.n <= 128


def test_errors_are_counted_by_cause_and_cancelled_requests_are_not() -> None:
    live = LiveMeasures()
    refused = Failure("ConnectionRefused", "", "network")
    for failure in (refused, refused, Failure("Too Many Requests", "slow down", "server", 429)):
        live.count(record(failure=failure), sampled=True)
    live.count(record(failure=refused, cancelled=True), sampled=True)
    assert live.errors == {
        ErrorCause("ConnectionRefused", None, "network"): 2,
        ErrorCause("Too Many Requests", 429, "server"): 1,
    }
    assert live.latency.n == 0


def test_number_of_causes_is_bounded() -> None:
    live = LiveMeasures()
    for n in range(100):
        live.count(record(failure=Failure(f"Error {n}", "", "server")), sampled=False)
    assert len(live.errors) == 33
    assert sum(live.errors.values()) == 100
