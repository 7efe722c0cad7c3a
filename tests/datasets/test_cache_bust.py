"""Markers in prompts."""

from __future__ import annotations

import pytest

from penstock.datasets.cache_bust import CacheBust
from penstock.datasets.conversation import Turn

TURN = Turn(texts=("one", "two"))


@pytest.mark.parametrize(
    ("target", "system", "texts"),
    [
        ("system_prefix", "M\n\ns", ("one", "two")),
        ("system_suffix", "s\n\nM", ("one", "two")),
        ("first_turn_prefix", "s", ("M\n\none", "two")),
        ("first_turn_suffix", "s", ("one", "two\n\nM")),
        ("warmup_isolation_system", "M\n\ns", ("one", "two")),
        ("warmup_isolation_first_turn", "s", ("M\n\none", "two")),
    ],
)
def test_marker_is_at_the_place_that_its_name_says(target: str, system: str, texts: tuple[str, ...]) -> None:
    bust = CacheBust(target, "run")
    assert bust.mark_system("s", "M") == system
    assert bust.mark_turn(TURN, "M").texts == texts
    assert bust.mark_system(None, "M") is None
    assert bust.mark_turn(TURN, "") == TURN


def test_markers_differ_between_conversations_phases_and_runs() -> None:
    first = CacheBust("first_turn_prefix", "first")
    markers = {first.marker(phase, number, warmup=False) for phase in range(2) for number in range(50)}
    markers.add(CacheBust("first_turn_prefix", "second").marker(0, 0, warmup=False))
    assert len(markers) == 101
    assert first.marker(1, 7, warmup=True) == first.marker(1, 7, warmup=True)


@pytest.mark.parametrize("target", ["warmup_isolation_system", "warmup_isolation_first_turn"])
def test_isolated_warmup_has_one_marker_and_profiling_none(target: str) -> None:
    bust = CacheBust(target, "run")
    assert {bust.marker(0, number, warmup=True) for number in range(5)} == {"[warmup]"}
    assert bust.marker(1, 0, warmup=False) == ""
