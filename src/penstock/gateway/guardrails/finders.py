"""A regular expression of the operator's, as a finder.

The engine is `regex`, not `re`: it knows `\\p{…}` and `(?<name>…)`, so that more of what Rust's engine takes is taken here,
it is faster on prose, it gives up the interpreter's lock while it searches, and a search can be given a time limit. A
pattern that backtracks without end would otherwise stop the whole worker on one hostile text; here the text counts as
undecided (see `patience`).
"""

from __future__ import annotations

from time import thread_time

import regex

from penstock.gateway.guardrails.detectors import MARGIN, Match
from penstock.gateway.guardrails.search_budget import Budget

__all__ = ["RegexFinder", "regex_error"]

_SHORT = 512
"""The time limit costs 2 to 5 µs a search. A pattern with one repetition, of one character or class, does without it on a
short text: at worst it reads that once for each of its characters, which takes 2 ms here, and 0.6 s on 8 KB."""

_SLOW = regex.compile(r"\)[*+?{]|\(\?(?:R|[+-]?[0-9]|&|P[>=])|\\(?:[1-9]|[gk][<{'])")
"""A group that is repeated, calls itself, or is referred to."""

_REPEATED = regex.compile(r"(?<!\()(?:[*+?]|\{[^}]*\})[+?]?")
"""`?` as well: a row of thirty takes 100 ms on such a text."""


class RegexFinder:
    """`reach` is the operator's word: in a window, a match that needs more text than that may be missed.

    It counts everything that the pattern looks at, so also what a look-ahead or a look-behind covers.
    """

    __slots__ = ("_grouped", "_hasty", "_regex", "numeric", "reach")

    def __init__(self, pattern: str, reach: int | None) -> None:
        self._regex = regex.compile(pattern)
        self._grouped = self._regex.groups > 0
        self._hasty = (
            _SLOW.search(pattern) is None
            and len(_REPEATED.findall(pattern)) < 2
            and ("|" not in pattern or pattern.count("(") < 3)  # a row of alternatives may never end
        )
        self.reach = reach
        self.numeric = False

    def find(self, text: str, position: int, budget: Budget) -> Match | None:
        limit = budget.limit(len(text) - position)
        began = thread_time()
        if self._hasty and len(text) < _SHORT:
            match = self._regex.search(text, position)
        else:
            try:
                match = self._regex.search(text, position, timeout=limit, concurrent=True)
            except TimeoutError:
                budget.spend_all()
        read = (len(text) if match is None else match.end()) - position
        took = thread_time() - began
        # where there is a match, there may be a million of them, each with a search of its own
        budget.spend(took - budget.free_s_per_search if match is None else took, read)
        if match is None:
            return None
        start, end = match.span()
        if self._grouped:
            first, last = match.span(1)
            if first >= 0 and last > first:
                return start, end, first, last
        return start, end, start, end

    def open_from(self, text: str, low: int) -> int:
        if self.reach is None:
            return low
        return max(low, len(text) - self.reach - MARGIN + 1)


def regex_error(pattern: str) -> str | None:
    """What is wrong with it, in words that do not quote it."""
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        reason, _, place = str(error).partition(" at position")
        reason = reason.split(" \\")[0]  # "bad escape \\q" quotes
        place = f" at position{place}" if place else ""
        return f"is not a valid regular expression: {reason}{place}"
    except (ValueError, OverflowError, RecursionError):
        return "is not a valid regular expression"
    if compiled.search("") is not None:
        return "matches the empty text, so it would match everything"
    return None
