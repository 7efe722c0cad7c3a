"""A regular expression of the operator's, as a finder.

The engine is `regex`, not `re`: it knows `\\p{…}` and `(?<name>…)`, so that more of what Rust's engine takes is taken here,
it is faster on prose, and a search can be given a time limit. A pattern that backtracks without end would otherwise stop
the whole worker on one hostile text; here the text counts as undecided, which an enforced guardrail treats as a match.
"""

from __future__ import annotations

import regex

from penstock.gateway.guardrails.detectors import MARGIN, Match

__all__ = ["RegexFinder", "Undecided", "regex_problem"]

_PATIENCE_S = 0.1
_PATIENCE_S_PER_CHARACTER = 100e-9
"""An honest pattern reads a character in 1 to 30 ns."""


_SHORT = 8192
"""The time limit costs 2 to 5 µs a search. A pattern with one repetition, of one character or class, does without it on a
short text: at worst it reads that once for each of its characters."""

_SLOW = regex.compile(r"\)[*+?{]|\(\?(?:R|[+-]?[0-9]|&|P>)")
"""A group that is repeated, or calls itself."""


class Undecided(Exception):
    """A search took too long."""


class RegexFinder:
    """`reach` is the operator's word: in a window, a match that needs more text than that may be missed.

    It counts everything that the pattern looks at, so also what a look-ahead or a look-behind covers.
    """

    __slots__ = ("_grouped", "_hasty", "_regex", "numeric", "reach", "separable")

    def __init__(self, pattern: str, reach: int | None) -> None:
        self._regex = regex.compile(pattern)
        self._grouped = self._regex.groups > 0
        self._hasty = _SLOW.search(pattern) is None and sum(pattern.count(sign) for sign in "*+{") < 2
        self.separable = False
        self.reach = reach
        self.numeric = False

    def find(self, text: str, position: int) -> Match | None:
        if self._hasty and len(text) < _SHORT:
            match = self._regex.search(text, position)
        else:
            try:
                patience = _PATIENCE_S + len(text) * _PATIENCE_S_PER_CHARACTER
                match = self._regex.search(text, position, timeout=patience)
            except TimeoutError:
                raise Undecided from None
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


def regex_problem(pattern: str) -> str | None:
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
