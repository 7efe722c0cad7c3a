"""The lines that the progress display writes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.progress import Display
from penstock.runs.phase_runner import RunProgress
from penstock.schedule.phase import Phase
from penstock.schedule.phases import make_phases
from penstock.settings.schema import LoadSettings, WarmupSettings

SECOND = 1_000_000_000


@pytest.fixture
def plans() -> tuple[Phase, ...]:
    load = LoadSettings(concurrency=2, requests=10)
    return tuple(make_phases(load, WarmupSettings(), synthetic=True, seed=1, servers=1, several_turns=False))


def show(
    plans: tuple[Phase, ...],
    monkeypatch: pytest.MonkeyPatch,
    states: list[tuple[float, int, int]],
    pause_s: float = 0.0,
) -> list[str]:
    """Return the lines written for a list of (seconds, ended, stopping), and in a pause after the phase."""
    lines: list[str] = []
    clock = [SECOND]
    monkeypatch.setattr("penstock.cli.progress.monotonic_ns", lambda: clock[0])
    monkeypatch.setattr("penstock.cli.progress._writer", lambda _tty: lambda text, *_: lines.append(text.strip()))
    display = Display(plans, [10])
    for seconds, ended, stopping in states:
        clock[0] = SECOND + round(seconds * SECOND)
        display(RunProgress(0, SECOND, 2, ended, ended, 0, 2, stopping, ()))
    display.finish()
    if pause_s:
        clock[0] += round(pause_s * SECOND)
        display(RunProgress(0, SECOND, 2, ended, ended, 0, 0, stopping, ()))
    return lines


def test_short_run_shows_no_rate(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(plans, monkeypatch, [(0, 0, 0), (0.1, 10, 0)])[-1].endswith("| 100% [00:00]")


def test_final_line_shows_the_rate_and_no_remaining_time(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    middle, *_, last = show(plans, monkeypatch, [(0, 0, 0), (5, 5, 0), (10, 10, 0)])
    assert middle.endswith("| 50% [00:05<00:05] 1.0 requests/s")
    assert last.endswith("| 100% [00:10] 1.0 requests/s")


def test_no_progress_is_shown_in_the_pause_after_a_phase(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [(0, 0, 0), (10, 10, 0)]
    assert show(plans, monkeypatch, states, pause_s=60) == show(plans, monkeypatch, states)


def test_stopping_run_shows_no_remaining_time(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(plans, monkeypatch, [(0, 0, 0), (4, 4, 1), (6, 6, 2)])
    assert "Stopping: waiting for 2 requests in flight; Ctrl-C again to stop at once." in lines
    assert "Stopping at once. Ctrl-C again kills the workers that do not stop." in lines
    assert not [line for line in lines if "<" in line]
    assert lines[-1].endswith("| 60% [00:06] 1.0 requests/s")


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_line_fits_the_terminal(plans: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    line = show(plans, monkeypatch, [(0, 0, 0), (4000, 5, 0)])[0].removeprefix("\x1b[K")
    assert len(line) < width
    assert line.startswith("Profiling: 5/10 ")
    assert ("|█" in line) == (width >= 60)


def test_dumb_terminal_gets_lines_without_control_sequences(plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert not [line for line in show(plans, monkeypatch, [(0, 0, 0), (10, 10, 0)]) if "\x1b" in line]
