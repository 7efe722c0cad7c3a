"""How long an inspection may take.

A regular expression can need time without end on a text that is made for it. So all searches of one request, one whole
reply or one stream share a budget. What an honest pattern needs for the text that it read is free (1 to 30 ns a
character), so that a long text is no reason for a refusal; what is above that comes out of the budget.

Time is that of the thread, not of the clock: a search gives up the interpreter's lock, and what it waits until it has it
back is not its own.
"""

from __future__ import annotations

__all__ = ["MATCH_S", "QUICK_S", "Budget", "Patience", "Undecided"]

FREE_S_PER_CHARACTER = 100e-9
MATCH_S = 2e-6
"""What dealing with one match takes, beside the search: of millions of them the budget has to know."""
QUICK_S = 0.005
"""On the event loop. What takes longer is begun again in a thread."""


class Undecided(Exception):
    """The budget is spent before the text was read."""


class Budget:
    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def limit(self, characters: int) -> float:
        """How long a search over so many may take."""
        if self.left <= 0:
            raise Undecided
        return self.left + characters * FREE_S_PER_CHARACTER

    def spend(self, seconds: float, characters: int = 0) -> None:
        seconds -= characters * FREE_S_PER_CHARACTER
        if seconds > 0:
            self.left -= seconds
            if self.left <= 0:
                raise Undecided

    def spend_all(self) -> None:
        self.left = 0.0
        raise Undecided


class Patience:
    """The budgets of one inspection. Guardrails that only watch have one of their own, so that they refuse nothing.

    When one of them is spent, the `last` inspection says so in its result; another one raises `Undecided` and has changed
    nothing.
    """

    __slots__ = ("_enforced", "_watched", "last")

    def __init__(self, seconds: float, *, last: bool = True) -> None:
        self._enforced = Budget(seconds)
        self._watched = Budget(seconds)
        self.last = last

    def budget(self, *, enforced: bool) -> Budget:
        return self._enforced if enforced else self._watched
