"""The counters of the operating system for one worker."""

from __future__ import annotations

import pytest

from penstock.workers import machine_counters
from penstock.workers.machine_counters import MachineCounters


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_stolen_time_is_reported_per_core(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_counters.os, "sysconf", lambda _: 100)
    core = "cpu{} 1 2 3 4 5 6 7 300 0 0\n"
    text = f"cpu  1 2 3 4 5 6 7 {300 * cores} 0 0\n" + "".join(core.format(n) for n in range(cores)) + "intr 1 2\n"
    assert machine_counters._stolen(text) == 3.0


@pytest.mark.parametrize(
    ("run_delay", "throttled", "stopped"), [(1.0, 8.0, 1.0), (5.0, 0.5, 0.5), (None, 8.0, 8.0), (0.0, 8.0, 8.0)]
)
def test_throttled_time_is_at_most_the_run_delay(
    run_delay: float | None, throttled: float, stopped: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight cores that are throttled for 1 s count as 8 s. Without a known run delay there is no bound."""
    before = {"wall": 0.0, "cpu": 0.0, "run_delay": 0.0, "throttled": 0.0}
    after = {"wall": 10.0, "cpu": 1.0, "run_delay": run_delay, "throttled": throttled}
    readings = iter((before, after))
    monkeypatch.setattr(machine_counters, "_counters", lambda: next(readings))
    facts = MachineCounters().facts()
    assert (facts.throttled_s, facts.run_delay_s) == (stopped, run_delay)
