"""The progress line, without a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.progress import Display
from penstock.schedule.phases import PhasePlan, phases
from penstock.settings.schema import LoadSettings, WarmupSettings
from penstock.workers.phase_controller import RunProgress

SECOND = 1_000_000_000


@pytest.fixture
def plans() -> tuple[PhasePlan, ...]:
    load = LoadSettings(concurrency=2, requests=10)
    return tuple(phases(load, WarmupSettings(), synthetic=True, seed=1, servers=1, several_turns=False))


def show(
    plans: tuple[PhasePlan, ...], monkeypatch: pytest.MonkeyPatch, states: list[tuple[float, int, int]]
) -> list[str]:
    """What is written for (seconds, ended, stopping)."""
    said: list[str] = []
    clock = [SECOND]
    monkeypatch.setattr("penstock.cli.progress.monotonic_ns", lambda: clock[0])
    monkeypatch.setattr("penstock.cli.progress._writer", lambda _tty: lambda text, *_: said.append(text.strip()))
    display = Display(plans, [10])
    for seconds, ended, stopping in states:
        clock[0] = SECOND + round(seconds * SECOND)
        display(RunProgress(0, SECOND, 2, ended, ended, 0, 2, stopping))
    display.finish()
    return said


def test_a_run_that_was_over_before_it_had_a_rate(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(plans, monkeypatch, [(0, 0, 0), (0.1, 10, 0)])[-1].endswith("| 100% [00:00]")


def test_the_last_line_tells_the_rate_and_no_time_to_come(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, *_, last = show(plans, monkeypatch, [(0, 0, 0), (5, 5, 0), (10, 10, 0)])
    assert under_way.endswith("| 50% [00:05<00:05] 1.0 requests/s")
    assert last.endswith("| 100% [00:10] 1.0 requests/s")


def test_what_is_left_is_not_told_once_it_stops(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(plans, monkeypatch, [(0, 0, 0), (4, 4, 1), (6, 6, 2)])
    assert "Stopping: waiting for 2 requests in flight; Ctrl-C again to stop at once." in lines
    assert "Stopping at once." in lines
    assert not [line for line in lines if "<" in line]
    assert lines[-1].endswith("| 60% [00:06] 1.0 requests/s")


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_it_stays_in_one_line_of_the_terminal(plans: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    under_way = show(plans, monkeypatch, [(0, 0, 0), (4000, 5, 0)])[0].removeprefix("\x1b[K")
    assert len(under_way) < width
    assert under_way.startswith("Profiling: 5/10 ")
    assert ("|█" in under_way) == (width >= 60)
