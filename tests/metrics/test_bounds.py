"""The bounds of headline figures, against simulated clients that stall, and whose reads cover several segments."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.endpoints.base import endpoint_named as endpoint
from penstock.metrics.bounds import HEADLINE, STATISTICS, RequestBounds, Unresolved, bounds_of, figure_bounds
from penstock.metrics.metric import TokenCounts
from penstock.records.interpret import InFlight, interpret
from penstock.records.record import Record
from penstock.wire.arrival_bounds import ArrivalBounds
from penstock.wire.exchange import Exchange
from support.chat_streams import DONE, ROLE, STOP, delta, event
from support.records import make_record, measure, measured
from support.scratch import SCRATCH

CHAT = endpoint("chat")
US = 1_000
MS = 1_000_000
BEAT = 500 * US
HEAD = event(ROLE)
TOKENS = [event(delta(f" {letter}")) for letter in "abcdefghij"]
TAIL = event(STOP) + DONE


class Stream:
    """One reply: when each segment of it arrives, and what the simulated client makes of that."""

    def __init__(self, rng: random.Random) -> None:
        self.start = rng.randrange(1, 20 * MS)
        self.lateness = rng.choice([0, 0, rng.randrange(30 * MS)])
        self.send_stall = rng.choice([0, 0, 0, rng.randrange(20 * MS)])
        tokens = TOKENS[: rng.randint(1, 10)]
        apart = rng.choice([0, 50 * US, MS, 20 * MS])
        first = self.start + rng.choice([10 * US, MS, 50 * MS])
        self.segments = [HEAD, *tokens, TAIL]
        if rng.random() < 0.3:  # the role and the first token in one write
            self.segments[:2] = [HEAD + tokens[0]]
        times = [first]
        for _ in self.segments[1:]:
            times.append(times[-1] + 1 + (rng.randrange(2 * apart) if apart else 0))
        self.arrivals = times
        self.tokens = len(tokens)
        self.bounds = ArrivalBounds()
        self.bounds.sent(self.start)
        self.next = 0
        self.observed = self.exchange()

    def exchange(self) -> Exchange:
        issued = self.start - self.send_stall - self.lateness
        record = Record(0, 0, 0, 0, 0, 0, 0, "r", "c", issued - 5 * MS, issued)
        made = Exchange(b"{}", lambda _: None, InFlight(record))
        made.start, made.sent = self.start - self.send_stall, self.start
        made.status, made.headers = 200, [(b"content-type", b"text/event-stream")]
        return made

    def arrived(self, now: int) -> int:
        """How many segments the socket has received by then."""
        return bisect_right(self.arrivals, now)

    def read(self, clock: Clock, known_empty: int) -> None:
        before = clock.now
        clock.work()
        end = self.arrived(clock.now)
        data = b"".join(self.segments[self.next : end])
        clock.work()
        total = self.arrived(clock.now)
        received = sum(map(len, self.segments[:total]))
        earliest = self.bounds.read(len(data), True, before, known_empty, total, received)
        add_read(self.observed, data, self.arrivals[end - 1], earliest)
        self.next = end

    def record(self) -> Record:
        return interpreted(self.observed)

    def true_record(self) -> Record:
        """What a client sees that reads every segment by itself, and sent the request when it had a slot."""
        made = self.exchange()
        made.start = self.start
        for time, data in zip(self.arrivals, self.segments, strict=True):
            add_read(made, data, time, None)
        record = interpreted(made)
        record.intended += self.lateness + self.send_stall
        return record


def add_read(made: Exchange, data: bytes, time: int, earliest: int | None) -> None:
    if earliest is not None:
        made.coalesced.append(len(made.times))
        made.earliest.append(earliest)
    made.times.append(time)
    made.pieces.append(data)
    made.counts.append(len(made.pieces))


def interpreted(made: Exchange) -> Record:
    made.first_byte, made.end = made.times[0], made.times[-1]
    record, _ = interpret(made, CHAT, 0)
    assert record.failure is None
    return record


class Clock:
    """A client's time: work takes some of it, and now and then the client is stopped."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0
        self._rng = rng
        self._stalls = rng.choice([0.0, 0.02, 0.2])
        self._stall = rng.choice([MS, 20 * MS, 400 * MS])

    def work(self) -> None:
        self.now += self._rng.randrange(1, 20 * US)
        if self._rng.random() < self._stalls:
            self.now += self._rng.randrange(self._stall)


def run_client(streams: list[Stream], rng: random.Random) -> None:
    """Read all streams with a loop that works like uvloop: mark, poll, read what the poll found."""
    clock = Clock(rng)
    last_mark = known_empty = 0
    mark_due, next_beat = True, 0
    while waiting := [stream for stream in streams if stream.next < len(stream.segments)]:
        if mark_due:
            known_empty, last_mark = last_mark, clock.now
            mark_due, next_beat = False, clock.now + BEAT
        clock.work()
        due = min(stream.arrivals[stream.next] for stream in waiting)
        clock.now = max(clock.now, min(due, next_beat))
        ready = [stream for stream in waiting if stream.arrivals[stream.next] <= clock.now]
        mark_due = clock.now >= next_beat
        clock.work()
        rng.shuffle(ready)
        for stream in ready:
            stream.read(clock, known_empty)


def simulated_runs(count: int) -> Iterator[tuple[list[Record], list[Record], list[TokenCounts]]]:
    """Yield (what the client recorded, what was true, token counts) for random runs."""
    for seed in range(count):
        rng = random.Random(seed)
        streams = [Stream(rng) for _ in range(rng.randint(1, 5))]
        run_client(streams, rng)
        yield (
            [stream.record() for stream in streams],
            [stream.true_record() for stream in streams],
            [TokenCounts(input=5, output=stream.tokens, reasoning=0) for stream in streams],
        )


def headline(records: list[Record], counts: list[TokenCounts]) -> dict[str, np.ndarray]:
    _, table = measured(records, counts)
    return {tag: values[~np.isnan(values)] for tag, values in table.values.items() if tag in HEADLINE}


@pytest.mark.parametrize("runs", [300, pytest.param(2_000, marks=pytest.mark.slow)])
def test_no_true_figure_is_outside_its_bounds(runs, tmp_path):
    inexact = 0
    for seed, (recorded, true, counts) in enumerate(simulated_runs(runs)):
        bounds = RequestBounds(SCRATCH)
        bounds.add(*measured(recorded, counts))
        observed, truth = headline(recorded, counts), headline(true, counts)
        uncertain = set(bounds.tags())
        for tag, values in observed.items():
            if tag not in uncertain:
                assert values == pytest.approx(truth[tag], abs=0.1), "a send of less than 0.1 ms is ignored"
                continue
            actual = dict(zip(STATISTICS, (truth[tag].mean(), *np.percentile(truth[tag], (50, 90, 99))), strict=True))
            for name, (value, low, high) in bounds.figures(tag, values).items():
                assert low - 0.1 <= actual[name] <= high + 1e-9, (seed, tag, name, actual[name], value, low, high)
                inexact += low < high
    assert inexact > runs


def bursts(known_empty_ns: int) -> RequestBounds:
    """Return the bounds of ten replies whose five tokens arrive 0.04 ms apart, and of which two reads get all but the last and
    the last. The socket was known to be empty so long before the first read."""
    stamps, at = [100 * MS, 100 * MS + 40 * US], 100 * MS
    bounds = RequestBounds(SCRATCH)
    records = [
        make_record(stamps=stamps, pieces=[4, 1], coalesced=[0], earliest=[at - known_empty_ns]) for _ in range(10)
    ]
    bounds.add(*measured(records, [TokenCounts(input=5, output=5, reasoning=0)] * 10))
    return bounds


def test_tokens_of_a_burst_are_unresolved_if_they_were_read_in_time() -> None:
    assert bursts(900 * US).unresolved["inter_token_latency"] == Unresolved(replies=10, in_time=10, late=0)
    assert bursts(20 * MS).unresolved["inter_token_latency"] == Unresolved(replies=0, in_time=0, late=10)


@pytest.mark.parametrize(("gap", "replies"), [(8 * MS, 0), (60 * US, 10)])
def test_tokens_far_apart_are_resolved_although_a_read_covers_two_segments(gap: int, replies: int) -> None:
    stamps = [100 * MS + i * gap for i in range(5)]
    found = RequestBounds(SCRATCH)
    records = [make_record(stamps=stamps, coalesced=[0], earliest=[100 * MS - 20 * US]) for _ in range(10)]
    found.add(*measured(records, [TokenCounts(input=5, output=5, reasoning=0)] * 10))
    assert found.unresolved["inter_token_latency"] == Unresolved(replies, 10, 0)


def test_unresolved_replies_of_sections_are_added() -> None:
    both = bursts(900 * US)
    both.merge(bursts(20 * MS))
    assert both.unresolved["inter_token_latency"] == Unresolved(replies=10, in_time=10, late=10)


@pytest.mark.parametrize("count", [1, 4])
def test_figures_without_uncertain_values_are_their_own_bounds(count):
    values = np.arange(1.0, count + 1)
    none = np.empty(0)
    for value, low, high in figure_bounds(values, none, [(none, none), (none, none)]).values():
        assert low == value == high


@pytest.mark.parametrize(("redirects", "low"), [(0, 20.0), (1, 50.0)])
def test_slow_send_is_uncertain_but_a_redirect_is_not(redirects, low):
    record = make_record(redirects=redirects)
    record.sent = record.start + 30 * MS
    values = measure(record, TokenCounts(input=5, output=5, reasoning=0)).values
    bounds = bounds_of(record, values)
    assert values["time_to_first_token"] == 50
    assert bounds.get("time_to_first_token", (50.0, 50.0)) == (low, 50.0)


def test_equal_values_are_moved_one_by_one():
    sides = [(np.array([1.0, 2.0]), np.empty(0)), (np.array([6.0, 8.0]), np.empty(0))]
    figures = figure_bounds(np.array([5.0, 5.0, 5.0]), np.array([5.0, 5.0]), sides)
    assert figures["avg"] == (5.0, pytest.approx(8 / 3), pytest.approx(19 / 3))


def test_stall_moves_only_the_requests_that_it_touched():
    values = np.arange(1.0, 101.0)
    sides = [(np.array([50.0]), np.empty(0)), (np.array([100.0]), np.empty(0))]
    figures = figure_bounds(values, np.array([100.0]), sides)
    assert figures["p50"].shift < 1.1
    assert figures["p99"].low < figures["p99"].value
