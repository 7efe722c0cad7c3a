"""Sentences about times in which no server answered."""

from __future__ import annotations

from tests.support.request_series import series_table

from penstock.metrics.outages import outage_notes
from penstock.records.record import Failure, Record

SECOND = 1_000_000_000


def notes(*ends: float, down: tuple[float, ...] = (), other: tuple[float, ...] = ()) -> list[str]:
    """Return the notes for successes at `ends`, lost connections at `down` and other failures at `other`, in seconds."""
    kinds = {at: Failure("ConnectionLost", "lost", "network") for at in down}
    kinds |= {at: Failure("HTTPError", "overloaded", "server", 503) for at in other}
    records = [
        Record(0, 0, 0, 0, 0, 0, 0, "r", "c", 0, 0, end=round(at * SECOND), failure=kinds.get(at))
        for at in (*ends, *kinds)
    ]
    return outage_notes(series_table(records), 0)


def test_outage_is_reported_with_its_time_and_its_requests() -> None:
    (note,) = notes(1.0, 2.0, 12.5, down=(2.1, 5.0, 9.0))
    assert note.startswith("No server answered from 2.0 s after the start to 12.5 s: 3 requests lost the connection")


def test_outage_up_to_the_end_is_reported() -> None:
    (note,) = notes(1.0, down=(2.0, 3.0, 4.0))
    assert "from 1.0 s after the start to the end" in note


def test_single_failures_and_answers_with_an_error_are_no_outage() -> None:
    assert notes(1.0, 5.0, down=(2.0, 3.0)) == []
    assert notes(1.0, 1.5, down=(1.1, 1.2, 1.3)) == []
    assert notes(1.0, 9.0, other=(2.0, 3.0, 4.0, 5.0)) == []
    assert notes(down=(1.0, 2.0, 3.0, 4.0)) == []


def test_many_outages_are_counted() -> None:
    starts = [10.0 * number for number in range(6)]
    found = notes(*starts, down=tuple(start + part for start in starts[:5] for part in (1, 2, 3)))
    assert len(found) == 4
    assert found[-1] == "There were 2 other times without an answer."
