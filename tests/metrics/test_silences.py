"""Sentences about times in which requests were in flight and no reply ended."""

from __future__ import annotations

from tests.support.request_series import series_table

from penstock.metrics.silences import silence_notes
from penstock.records.record import Record

SECOND = 1_000_000_000


def notes(requests: list[tuple[float, float]]) -> list[str]:
    """Return the notes for requests with these starts and ends, in seconds."""
    times = [(round(start * SECOND), round(end * SECOND)) for start, end in requests]
    records = [Record(0, 0, 0, 0, 0, 0, 0, "r", "c", start, start, start=start, end=end) for start, end in times]
    return silence_notes(series_table(records), 0)


def test_replies_that_a_cut_network_held_are_told_with_the_time() -> None:
    before = [(n / 10, n / 10 + 0.3) for n in range(20)]
    held = [(2 + n / 10, 12.5 + n / 100) for n in range(4)]
    after = [(13 + n / 10, 13.3 + n / 10) for n in range(20)]
    (note,) = notes([*before, *held, *after])
    assert note.startswith(
        "No reply ended from 2.2 s after the start to 12.5 s, while 4 requests waited: the network was cut"
    )


def test_time_without_requests_is_no_silence() -> None:
    burst = [(10 + n / 1000, 10.4 + n / 1000) for n in range(8)]
    assert notes([(0.0, 0.3), (0.1, 0.4), *burst]) == []


def test_slow_server_is_no_silence() -> None:
    waves = [(5.0 * wave, 5.0 * (wave + 1) + n / 1000) for wave in range(6) for n in range(8)]
    assert notes(waves) == []


def test_one_long_request_is_no_silence() -> None:
    assert notes([*((n / 10, n / 10 + 0.1) for n in range(10)), (1.0, 20.0), (20.0, 20.1)]) == []


def test_many_silences_are_counted() -> None:
    waits = [(20.0 * k + n / 100, 20.0 * k + 12 + n / 100) for k in range(5) for n in range(3)]
    quick = [(20.0 * k + 13 + n / 100, 20.0 * k + 13.01 + n / 100) for k in range(-1, 5) for n in range(100)]
    found = notes([*waits, *quick])
    assert len(found) == 4
    assert found[-1] == "There were 2 other times without a reply."
