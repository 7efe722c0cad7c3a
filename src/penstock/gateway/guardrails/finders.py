"""The finder for configured regular expressions.

The engine is `regex`, not `re`: it supports `\\p{…}` and `(?<name>…)`, so it accepts more patterns written for Rust's engine;
it is faster on prose, it releases the GIL while it searches, and a search can have a time limit. Without the limit, a pattern
that backtracks on a hostile text could stop the whole worker (see `search_budget`).
"""

from __future__ import annotations

from time import thread_time

import regex

from penstock.gateway.guardrails.detectors import MARGIN, Match
from penstock.gateway.guardrails.search_budget import SearchBudget

_SHORT_TEXT = 512
"""The time limit costs 2 to 5 µs per search. A pattern with a single quantifier, on one character or class, runs without it
on a text below this length: its worst case is quadratic, 2 ms here (0.6 s on 8 KB)."""

_SLOW = regex.compile(r"\)[*+?{]|\(\?(?:R|[+-]?[0-9]|&|P[>=])|\\(?:[1-9]|[gk][<{'])")
"""A repeated group, a recursive call or a back-reference."""

_QUANTIFIER = regex.compile(r"(?<!\()(?:[*+?]|\{[^}]*\})[+?]?")
"""A quantifier, including `?`: thirty in a row take 100 ms on such a text."""


class RegexFinder:
    """Finds matches of a configured regex.

    `max_length` is the configured maximum match length, including look-aheads and look-behinds. In window mode, longer
    matches may be missed.
    """

    def __init__(self, pattern: str, max_length: int | None) -> None:
        self._regex = regex.compile(pattern)
        self._grouped = self._regex.groups > 0
        self._skip_time_limit = (
            _SLOW.search(pattern) is None
            and len(_QUANTIFIER.findall(pattern)) < 2
            and ("|" not in pattern or pattern.count("(") < 3)  # many alternatives may take exponential time
        )
        self.max_length = max_length
        self.numeric = False

    def find(self, text: str, position: int, budget: SearchBudget) -> Match | None:
        limit = budget.time_limit(len(text) - position)
        started = thread_time()
        if self._skip_time_limit and len(text) < _SHORT_TEXT:
            match = self._regex.search(text, position)
        else:
            try:
                match = self._regex.search(text, position, timeout=limit, concurrent=True)
            except TimeoutError:
                budget.spend_all()
        characters = (len(text) if match is None else match.end()) - position
        seconds = thread_time() - started
        # A match is charged in full: there may be a million of them, each with its own search.
        budget.spend(seconds - budget.free_s_per_search if match is None else seconds, characters)
        if match is None:
            return None
        start, end = match.span()
        if self._grouped:
            first, last = match.span(1)
            if first >= 0 and last > first:
                return start, end, first, last
        return start, end, start, end

    def undecided_from(self, text: str, low: int) -> int:
        if self.max_length is None:
            return low
        return max(low, len(text) - self.max_length - MARGIN + 1)
