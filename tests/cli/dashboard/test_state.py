"""The figures that the dashboard derives from snapshots."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.cli.dashboard.snapshot import PhaseView, Snapshot
from penstock.cli.dashboard.state import DashboardState
from penstock.workers.messages import ErrorCause
from support.snapshots import at_second, make_header, report, sketch


def run(*snapshots: Snapshot) -> DashboardState:
    state = DashboardState(make_header())
    for snapshot in snapshots:
        state.add(snapshot)
    return state


def test_rates_are_those_of_the_last_seconds():
    state = run(*(at_second(n / 2) for n in range(1, 21)))
    assert state.request_rate.last == pytest.approx(20)
    assert state.token_rate.last == pytest.approx(200)
    assert len(state.request_rate.values) == 20
    stalled = [replace(at_second(10), at=at_second(10 + n / 2).at) for n in range(1, 10)]
    for snapshot in stalled:
        state.add(snapshot)
    assert state.request_rate.last == 0


def test_tokens_in_flight_are_estimated_from_reads():
    """Requests that last longer than the run so far have sent tokens, and none of them has ended."""
    phase = PhaseView("Profiling", 10, None, began=True, seconds=2)
    state = run(at_second(2, phases=[phase], tokens=0, tokens_reads=0, reads=300))
    assert state.token_rate.last == pytest.approx(150)


def test_percentiles_cover_the_phase_and_their_history_the_last_seconds():
    slow = at_second(10)
    slower = sketch(50, 200)
    slower.merge(sketch(200, 20))
    state = run(slow, at_second(14, first_content=slower))
    percentiles = state.percentiles(lambda snapshot: snapshot.first_content)
    assert percentiles is not None
    assert percentiles.p50 == pytest.approx(50, rel=0.07)
    assert percentiles.p99 == pytest.approx(200, rel=0.07)
    assert [round(value or 0, -1) for value in state.first_content.values] == [50, 200]


def test_figure_without_new_requests_has_a_gap_in_its_history():
    state = run(at_second(10), at_second(14, first_content=sketch(50, 200)))
    assert state.first_content.last is None
    assert state.percentiles(lambda snapshot: snapshot.first_content) is not None


def test_next_phase_starts_anew():
    first = at_second(10, phases=[PhaseView("Warmup", 200, None, began=True, seconds=10, ended=200)])
    state = run(first, at_second(0.5, phase=1))
    assert len(state.request_rate.values) == 1


@pytest.mark.parametrize(
    ("fields", "verdict", "reason"),
    [
        ({}, "VALID", ""),
        ({"reports": [report(cpu_share=0.97)]}, "DEGRADED", "97% of its CPU core"),
        ({"lost": ["Worker 0 was killed by signal 9."]}, "INVALID", "Worker 0 was killed by signal 9."),
        (
            {"errors": {ErrorCause("NoSocket", None, "penstock"): 100}},
            "INVALID",
            "100 of 200 requests failed because of an error in the client",
        ),
    ],
)
def test_certificate_so_far(fields, verdict, reason):
    phase = PhaseView(
        "Profiling", 1000, None, began=True, seconds=10, ended=200, failed=100 if "errors" in fields else 0
    )
    certificate = run(at_second(10, phases=[phase], **fields)).certificate
    assert certificate is not None
    assert certificate.verdict == verdict
    assert reason in " ".join(certificate.reasons)


def test_there_is_no_certificate_before_the_first_request_has_ended():
    assert run(at_second(0)).certificate is None
