"""The compiled guardrails of one hook, and the inspection of complete texts.

Every guardrail reads the original text, including text that an earlier guardrail masks. The first guardrail that blocks,
in file order, ends the inspection, and nothing is masked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import regex

from penstock.gateway.guardrail_patterns import regex_error
from penstock.gateway.guardrails.detectors import DETECTORS, Finder, Match
from penstock.gateway.guardrails.finders import RegexFinder
from penstock.gateway.guardrails.inspection import MatchCounts
from penstock.gateway.guardrails.literals import Literals
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.search_budget import MATCH_S, InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.search_texts import SearchText, build_search_texts
from penstock.gateway.guardrails.texts import InspectedText, TextRef
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern

__all__ = ["Blocked", "Chain", "Guard", "LiteralMatcher", "Rule", "guardrail_errors"]

_DETECTOR_CONTEXT = 64
"""Characters of context kept for the detectors' look-behinds, with a margin. A configured regex gets its maximum length."""

_MAX_LITERAL = 4096
"""Bounds the work per stream event, which compares the end of the text with the prefixes of the literals."""


class Blocked(Exception):
    """Raised when an enforced guardrail finds blocked content or times out. The handler calls `count`."""

    def __init__(self, guard: Guard, *, timed_out: bool = False) -> None:
        super().__init__(guard.name)
        self.guard = guard
        self.timed_out = timed_out

    def count(self, match_counts: MatchCounts) -> None:
        match_counts.add(self.guard.order, self.guard.name, "timed_out" if self.timed_out else "blocked", "")


class Rule:
    """One detector or regular expression of a guardrail."""

    __slots__ = ("blocks", "finder", "guard", "order", "token")

    def __init__(self, guard: Guard, finder: Finder | RegexFinder, *, order: int, blocks: bool, token: str) -> None:
        self.guard = guard
        self.finder = finder
        self.order = order
        self.blocks = blocks
        self.token = token

    def find(self, text: str, position: int, budgets: SearchBudgets) -> Match | None:
        """Return the leftmost match at or after `position`. Raises `InspectionTimeout`."""
        finder = self.finder
        budget = budgets.budget(enforced=self.guard.enforced)
        match = finder.find(text, position, budget) if isinstance(finder, RegexFinder) else finder.find(text, position)
        if match is not None:
            budget.spend(MATCH_S, match[1] - position)
        return match

    def may_match(self, joined: str) -> bool:
        """Return False if no match is possible in the texts, which are joined with a control character.

        Only detectors are searched: their time is linear in the text, so they need no budget.
        """
        return isinstance(self.finder, RegexFinder) or self.finder.find(joined, 0) is not None

    def find_all(self, text: str, match_counts: MatchCounts, budgets: SearchBudgets) -> Iterator[Match]:
        position = 0
        try:
            while (match := self.find(text, position, budgets)) is not None:
                yield match
                position = match[1] if match[1] > match[0] else match[0] + 1
        except InspectionTimeout:
            if not budgets.final:
                raise
            self.guard.record_timeout(match_counts)


class Guard:
    """One compiled guardrail."""

    __slots__ = ("enforced", "name", "order", "rules")

    def __init__(self, name: str, *, order: int, enforced: bool) -> None:
        self.name = name
        self.order = order
        self.enforced = enforced
        self.rules: list[Rule] = []

    def record_block(self, match_counts: MatchCounts, source: str) -> None:
        if self.enforced:
            raise Blocked(self)
        match_counts.add(self.order, self.name, "would_block", source)

    def record_timeout(self, match_counts: MatchCounts) -> None:
        """Record that the search timed out. An enforced guardrail blocks, because the text may contain a match."""
        if self.enforced:
            raise Blocked(self, timed_out=True) from None
        match_counts.add(self.order, self.name, "timed_out", "")

    def record_mask(self, match_counts: MatchCounts, source: str) -> None:
        match_counts.add(self.order, self.name, "masked" if self.enforced else "would_mask", source)


class LiteralMatcher:
    """The case-folded literals of several guardrails, in one automaton."""

    __slots__ = ("guards_of", "literals", "separator")

    def __init__(self, entries: Iterable[tuple[str, Guard]]) -> None:
        guards_of: dict[str, list[Guard]] = {}
        for literal, guard in entries:
            guards = guards_of.setdefault(literal.casefold(), [])
            if guard not in guards:
                guards.append(guard)
        self.literals = Literals(guards_of)
        self.guards_of = list(guards_of.values())
        # Separates texts that are searched together: a character that no literal contains. ASCII if possible, because
        # folding 4 KB of ASCII takes 1 µs, and 20 µs otherwise.
        candidates = map(chr, (*range(1, 9), *range(14, 32), *range(0xFDD0, 0xFDF0)))
        self.separator = next(
            character for character in candidates if not any(character in literal for literal in guards_of)
        )

    def matching_guards(self, folded: str, after: int = 0) -> Iterator[Guard]:
        """Yield the guards of each literal in `folded` that ends after position `after`."""
        for number, _, end in self.literals.find(folded):
            if end > after:
                yield from self.guards_of[number]


class Chain:
    """The guardrails of one hook. Their specs must be valid: see `guardrail_errors`."""

    __slots__ = (
        "bounded_rules",
        "context",
        "enforced_literals",
        "guards",
        "monitored_literals",
        "numeric_rules",
        "rules",
        "supports_window",
        "unbounded_rules",
    )

    def __init__(self, specs: Sequence[GuardrailSpec], max_lengths: dict[str, int]) -> None:
        self.guards: list[Guard] = []
        self.rules: list[Rule] = []
        literals: list[tuple[str, Guard]] = []
        for order, spec in enumerate(specs):
            guard = Guard(spec.name, order=order, enforced=spec.enforcement == "block")
            self.guards.append(guard)
            for finder, blocks, token in _finders(spec, max_lengths.get(spec.name)):
                guard.rules.append(Rule(guard, finder, order=len(self.rules), blocks=blocks, token=token))
                self.rules.append(guard.rules[-1])
            if spec.kind == "keyword":
                literals.extend((pattern.value, guard) for pattern in spec.patterns if pattern.kind == "literal")
        enforced = [entry for entry in literals if entry[1].enforced]
        monitored = [entry for entry in literals if not entry[1].enforced]
        self.enforced_literals = LiteralMatcher(enforced) if enforced else None
        self.monitored_literals = LiteralMatcher(monitored) if monitored else None
        """Kept apart, because monitored literals hold nothing back."""
        self.bounded_rules = [rule for rule in self.rules if rule.finder.max_length is not None]
        self.unbounded_rules = [rule for rule in self.rules if rule.finder.max_length is None]
        """Rules without a bound on the length of a match."""
        self.numeric_rules = [index for index, rule in enumerate(self.bounded_rules) if rule.finder.numeric]
        """Indexes into `bounded_rules`."""
        self.supports_window = not any(rule.guard.enforced for rule in self.unbounded_rules)
        regex_lengths = [rule.finder.max_length or 0 for rule in self.rules if isinstance(rule.finder, RegexFinder)]
        self.context = max([_DETECTOR_CONTEXT, *regex_lengths])
        """Number of characters before a position that can affect a match at it."""

    @property
    def enforced(self) -> bool:
        return any(guard.enforced for guard in self.guards)

    def inspect(
        self, texts: Sequence[InspectedText], match_counts: MatchCounts, budgets: SearchBudgets
    ) -> list[TextRef]:
        """Set the replacements of the masked texts and return their refs. Raises `Blocked` and `InspectionTimeout`."""
        if not texts:
            return []
        search_texts = build_search_texts(texts)
        strings = [search_text.text for search_text in search_texts]
        literal_sources = self._literal_sources(search_texts) if self._has_literal(strings) else {}
        joined = "\0".join(strings) if self.rules else ""
        maskings: dict[int, Masking] = {}
        for guard in self.guards:
            for source in literal_sources.get(guard.order, ()):
                guard.record_block(match_counts, source)
            for rule in guard.rules:
                if rule.may_match(joined):
                    for search_text in search_texts:
                        _apply(rule, search_text, maskings, match_counts, budgets)
        return [ref for number, masking in maskings.items() for ref in _apply_masks(texts[number], masking)]

    def _has_literal(self, strings: list[str]) -> bool:
        return any(
            matcher.literals.find(matcher.separator.join(strings).casefold())
            for matcher in (self.enforced_literals, self.monitored_literals)
            if matcher is not None
        )

    def _literal_sources(self, search_texts: Sequence[SearchText]) -> dict[int, list[str]]:
        """Return the source of every literal match, by the order of its guardrail."""
        sources: dict[int, list[str]] = {}
        for matcher in (self.enforced_literals, self.monitored_literals):
            if matcher is None:
                continue
            for search_text in search_texts:
                accepts = search_text.accepts_folded()
                for number, start, end in matcher.literals.find(search_text.text.casefold()):
                    if accepts is None or accepts(start, end):
                        for guard in matcher.guards_of[number]:
                            sources.setdefault(guard.order, []).append(search_text.source)
        return sources


def _apply(
    rule: Rule, search_text: SearchText, maskings: dict[int, Masking], match_counts: MatchCounts, budgets: SearchBudgets
) -> None:
    for start, end, first, last in rule.find_all(search_text.text, match_counts, budgets):
        if search_text.accepts is not None and not search_text.accepts(start, end):
            continue
        if rule.blocks:
            rule.guard.record_block(match_counts, search_text.source)
        elif first < last:
            rule.guard.record_mask(match_counts, search_text.source)
            if rule.guard.enforced:
                masking = maskings.setdefault(search_text.index, Masking())
                masking.add(*search_text.source_span(first, last), rule.order, search_text.escape_token(rule.token))


def _apply_masks(inspected: InspectedText, masking: Masking) -> Iterator[TextRef]:
    position = 0
    for ref in (inspected,) if isinstance(inspected, TextRef) else inspected.refs:
        text = masking.apply(ref.text, position)
        position += len(ref.text)
        if text != ref.text:
            ref.replacement = text
            yield ref


def _finders(spec: GuardrailSpec, max_length: int | None) -> Iterator[tuple[Finder | RegexFinder, bool, str]]:
    """Yield (finder, blocks, mask token). `max_length` is the configured maximum match length of the spec's regexes."""
    if spec.kind == "keyword":
        for pattern in spec.patterns:
            if pattern.kind == "regex":
                yield RegexFinder(pattern.value, max_length), True, ""
        return
    for name, action in spec.detectors:
        yield DETECTORS[name], action == "block", _token(name)
    for pattern in spec.patterns:
        if pattern.kind == "regex":
            finder = RegexFinder(pattern.value, max_length)
        else:
            finder = RegexFinder(f"(?i:{regex.escape(pattern.value)})", len(pattern.value))
        token = _token(pattern.name or "custom") if pattern.replacement is None else pattern.replacement
        yield finder, pattern.action == "block", token


def _token(name: str) -> str:
    return f"[{name.upper()}_REDACTED]"


def guardrail_errors(spec: GuardrailSpec) -> list[str]:
    """Return the errors in a guardrail's patterns and detectors. They give a pattern's number and never quote it."""
    errors = [
        f"guardrail {spec.name!r}: unknown detector {name!r}; the detectors are {', '.join(DETECTORS)}"
        for name, _ in spec.detectors
        if name not in DETECTORS
    ]
    for number, pattern in enumerate(spec.patterns):
        error = _pattern_error(pattern)
        if error is not None:
            errors.append(f"guardrail {spec.name!r}: pattern {number + 1} {error}")
    return errors


def _pattern_error(pattern: Pattern) -> str | None:
    if not pattern.value:
        return "is empty, so it would match everything"
    if pattern.kind == "regex":
        return regex_error(pattern.value)
    size = len(pattern.value)
    return f"has {size} characters; a literal may have at most {_MAX_LITERAL}" if size > _MAX_LITERAL else None
