"""Time budgets for inspections.

A regular expression can take unbounded time on a hostile text. So all searches of one request, whole reply or stream share
a budget. The time that a normal pattern needs per character (1 to 30 ns) is free, so that a long text does not time out;
only the excess is charged to the budget. In a stream each search also has a free constant share, because there is one per
pattern and event and a long stream must not time out either.

Budgets are charged thread CPU time, not wall time: a search releases the GIL, and waiting to reacquire it is not charged.
"""

from __future__ import annotations

FREE_S_PER_CHARACTER = 100e-9
FREE_S_PER_SEARCH = 10e-6
"""For streams: the fixed cost of a search is 2 to 5 µs."""
MATCH_S = 5e-6
"""Cost of handling one match, in addition to the search. It is charged because there may be millions of matches."""
QUICK_S = 0.005
"""Budget on the event loop. A slower inspection is restarted in a thread."""


class InspectionTimeout(Exception):
    """The budget was spent before the search was complete."""


class SearchBudget:
    """Search time that is left. Free time that one search does not use offsets the excess of another."""

    def __init__(self, seconds: float, free_s_per_search: float) -> None:
        self._full = self.seconds_left = seconds
        self.free_s_per_search = free_s_per_search

    def time_limit(self, characters: int) -> float:
        """Return the time limit in seconds for a search of `characters`. Raises `InspectionTimeout` if none is left."""
        if self.seconds_left <= 0:
            raise InspectionTimeout
        return self.seconds_left + characters * FREE_S_PER_CHARACTER

    def spend(self, seconds: float, characters: int = 0) -> None:
        seconds -= characters * FREE_S_PER_CHARACTER
        if seconds > 0 or self.seconds_left > 0:
            left = self.seconds_left - seconds
            self.seconds_left = left if left < self._full else self._full
            if left <= 0:
                raise InspectionTimeout

    def spend_all(self) -> None:
        self.seconds_left = 0.0
        raise InspectionTimeout


class SearchBudgets:
    """The budgets of one inspection. Monitoring guardrails have their own budget, so that they cannot cause a block.

    When a budget is spent, a `final` inspection records the timeout in its result; any other raises `InspectionTimeout`
    and has no side effects.
    """

    def __init__(self, seconds: float, *, final: bool = True, stream: bool = False) -> None:
        free = FREE_S_PER_SEARCH if stream else 0.0
        self._enforced = SearchBudget(seconds, free)
        self._monitored = SearchBudget(seconds, free)
        self.final = final

    def budget(self, *, enforced: bool) -> SearchBudget:
        return self._enforced if enforced else self._monitored
