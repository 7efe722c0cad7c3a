"""How long an inspection may take.

A regular expression can need time without end on a text that is made for it. So all searches of one request, one whole
reply or one stream share a budget. What an honest pattern needs for the text that it read is free (1 to 30 ns a
character), so that a long text is no reason for a refusal; what is above that comes out of the budget. In a stream a search
of a few characters is free too: there is one for each pattern and event, and a long stream is no reason either.

Time is that of the thread, not of the clock: a search gives up the interpreter's lock, and what it waits until it has it
back is not its own.
"""

from __future__ import annotations

__all__ = ["MATCH_S", "QUICK_S", "Budget", "SearchBudgets", "Undecided"]

FREE_S_PER_CHARACTER = 100e-9
FREE_S_PER_SEARCH = 10e-6
"""In a stream: a search takes 2 to 5 µs before it has read anything."""
MATCH_S = 2e-6
"""What dealing with one match takes, beside the search: of millions of them the budget has to know."""
QUICK_S = 0.005
"""On the event loop. What takes longer is begun again in a thread."""


class Undecided(Exception):
    """The budget is spent before the text was read."""


class Budget:
    """What one search leaves of its free time makes up for what another takes beyond it."""

    __slots__ = ("_full", "free_s_per_search", "left")

    def __init__(self, seconds: float, free_s_per_search: float) -> None:
        self._full = self.left = seconds
        self.free_s_per_search = free_s_per_search

    def limit(self, characters: int) -> float:
        """How long a search over so many may take."""
        if self.left <= 0:
            raise Undecided
        return self.left + characters * FREE_S_PER_CHARACTER

    def spend(self, seconds: float, characters: int = 0) -> None:
        seconds -= characters * FREE_S_PER_CHARACTER
        if seconds > 0 or self.left > 0:
            left = self.left - seconds
            self.left = left if left < self._full else self._full
            if left <= 0:
                raise Undecided

    def spend_all(self) -> None:
        self.left = 0.0
        raise Undecided


class SearchBudgets:
    """The budgets of one inspection. Guardrails that only watch have one of their own, so that they refuse nothing.

    When one of them is spent, the `last` inspection says so in its result; another one raises `Undecided` and has changed
    nothing.
    """

    __slots__ = ("_enforced", "_watched", "last")

    def __init__(self, seconds: float, *, last: bool = True, stream: bool = False) -> None:
        free = FREE_S_PER_SEARCH if stream else 0.0
        self._enforced = Budget(seconds, free)
        self._watched = Budget(seconds, free)
        self.last = last

    def budget(self, *, enforced: bool) -> Budget:
        return self._enforced if enforced else self._watched
