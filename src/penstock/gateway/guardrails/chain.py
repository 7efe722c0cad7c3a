"""The compiled guardrails of one hook, and the inspection of complete texts.

Every guardrail reads the original text, including text that an earlier guardrail masks. The first guardrail that blocks,
in file order, ends the inspection, and nothing is masked then.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from penstock.gateway.dialects.field_map import ID, TEXT
from penstock.gateway.dialects.texts import InspectedText, TextRef
from penstock.gateway.guardrails.detectors import DETECTORS, Finder, Match
from penstock.gateway.guardrails.finders import RegexFinder
from penstock.gateway.guardrails.inspection import Blocked, MatchCounts
from penstock.gateway.guardrails.literals import Literals
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.normalise import normalise
from penstock.gateway.guardrails.search_budget import MATCH_S, InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.text_views import TextView, build_views
from penstock.gateway.resources.snapshot import GuardrailSpec

_CONTEXT = 64
"""Characters of context kept for the detectors' look-behinds and for split escapes, with a margin. A configured regex gets its
maximum length."""


class Rule:
    """One detector or regular expression of a guardrail."""

    def __init__(
        self, guardrail: Guardrail, finder: Finder | RegexFinder, *, order: int, blocks: bool, token: str
    ) -> None:
        self.guardrail = guardrail
        self.finder = finder
        self.order = order
        self.blocks = blocks
        self.token = token

    def find(self, text: str, position: int, budgets: SearchBudgets) -> Match | None:
        """Return the leftmost match at or after `position`. Raises `InspectionTimeout`."""
        finder = self.finder
        budget = budgets.budget(enforced=self.guardrail.enforced)
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
            self.guardrail.record_timeout(match_counts)


class Guardrail:
    """One compiled guardrail."""

    def __init__(self, name: str, *, order: int, enforced: bool) -> None:
        self.name = name
        self.order = order
        self.enforced = enforced
        self.rules: list[Rule] = []
        self.literals: list[str] = []

    def block(self, match_counts: MatchCounts) -> NoReturn:
        match_counts.add(self.order, self.name, "blocked", "")
        raise Blocked(self.name)

    def record_block(self, match_counts: MatchCounts, source: str) -> None:
        if self.enforced:
            self.block(match_counts)
        match_counts.add(self.order, self.name, "would_block", source)

    def record_timeout(self, match_counts: MatchCounts) -> None:
        """Record that the search timed out. An enforced guardrail blocks, because the text may contain a match."""
        match_counts.add(self.order, self.name, "timed_out", "")
        if self.enforced:
            raise Blocked(self.name, timed_out=True) from None

    def record_mask(self, match_counts: MatchCounts, source: str) -> None:
        match_counts.add(self.order, self.name, "masked" if self.enforced else "would_mask", source)


class Folder:
    """Folds the case of a text piece by piece, and collapses runs of white space, for literals that are phrases."""

    def __init__(self) -> None:
        self._ends_in_space = False

    def feed(self, text: str) -> str:
        folded = text.casefold()
        if not folded:
            return folded
        starts_in_space = folded[0].isspace() and not self._ends_in_space
        self._ends_in_space = folded[-1].isspace()
        words = " ".join(folded.split())
        if not words:
            return " " if starts_in_space else ""
        return (" " if starts_in_space else "") + words + (" " if self._ends_in_space else "")


class LiteralMatcher:
    """The folded literals of several guardrails, in one automaton."""

    def __init__(self, guardrails: Sequence[Guardrail]) -> None:
        entries = [(literal, guardrail) for guardrail in guardrails for literal in guardrail.literals]
        self._collapses = any(len(literal.split()) > 1 for literal, _ in entries)
        guardrails_of: dict[str, list[Guardrail]] = {}
        for literal, guardrail in entries:
            for spelling in _spellings(literal):
                sharing = guardrails_of.setdefault(self.fold(spelling), [])
                if guardrail not in sharing:
                    sharing.append(guardrail)
        self.literals = Literals(guardrails_of)
        self.guardrails_of = list(guardrails_of.values())
        self.max_length = max(map(len, guardrails_of))
        # Separates texts that are searched together: a character that no literal contains. ASCII if possible, because
        # folding 4 KB of ASCII takes 1 µs, and 20 µs otherwise.
        candidates = map(chr, (*range(1, 9), *range(14, 28), *range(0xFDD0, 0xFDF0)))
        self.separator = next(
            character for character in candidates if not any(character in literal for literal in guardrails_of)
        )

    def folder(self) -> Callable[[str], str]:
        """Return a function that folds a text piece by piece."""
        return Folder().feed if self._collapses else str.casefold

    def fold(self, text: str) -> str:
        return self.folder()(text)

    def contained_in(self, texts: Iterable[str]) -> bool:
        return bool(self.literals.find(self.fold(self.separator.join(texts))))


def _spellings(literal: str) -> set[str]:
    """Return the spellings of a literal: as configured, composed, decomposed and normalised."""
    composed = unicodedata.normalize("NFC", literal)
    spellings = (literal, composed, unicodedata.normalize("NFD", literal), normalise(composed))
    return {spelling for spelling in spellings if spelling}


class Chain:
    """Compiled guardrails that inspect the same texts (see `compile_guardrails`)."""

    def __init__(self, guardrails: Sequence[Guardrail]) -> None:
        self.guardrails = guardrails
        self.rules = [rule for guardrail in guardrails for rule in guardrail.rules]
        self.literals = LiteralMatcher(guardrails) if any(guardrail.literals for guardrail in guardrails) else None
        self.numeric_rules = [index for index, rule in enumerate(self.rules) if rule.finder.numeric]
        """Indexes into `rules`."""
        self.enforced = any(guardrail.enforced for guardrail in guardrails)
        self.supports_window = all(rule.finder.max_length is not None for rule in self.rules if rule.guardrail.enforced)
        regex_lengths = [rule.finder.max_length or 0 for rule in self.rules if isinstance(rule.finder, RegexFinder)]
        self.context = max([_CONTEXT, *regex_lengths, self.literals.max_length if self.literals is not None else 0])
        """Number of characters before a position that can affect a match at it."""

    def split(self) -> tuple[Chain, Chain]:
        """Return the enforcing and the monitoring guardrails."""
        return Chain([guardrail for guardrail in self.guardrails if guardrail.enforced]), Chain(
            [guardrail for guardrail in self.guardrails if not guardrail.enforced]
        )

    def inspect(
        self,
        texts: Sequence[InspectedText],
        match_counts: MatchCounts,
        budgets: SearchBudgets,
        *,
        masks_joined: bool = True,
    ) -> list[TextRef]:
        """Set the replacements of the masked texts and return their refs. Raises `Blocked` and `InspectionTimeout`.

        Without `masks_joined`, a match over several parts of a text is blocked instead of masked.
        """
        if not texts:
            return []
        views, hidden = build_views(texts)
        if hidden:
            self.block_hidden_text(match_counts)
        maskings: dict[int, Masking] = {}
        for view, first, last, rule in self.search(views, match_counts, budgets, texts):
            if view.accepts is not None and not masks_joined:
                rule.guardrail.block(match_counts)
            masking = maskings.setdefault(view.index, Masking())
            masking.add(*view.source_span(first, last), rule.order, view.escape_token(rule.token))
        return [ref for number, masking in maskings.items() for ref in _apply_masks(texts[number], masking)]

    def block_hidden_text(self, match_counts: MatchCounts) -> None:
        """Block a text that hides more than guardrails can see."""
        for guardrail in self.guardrails:
            if guardrail.enforced:
                guardrail.block(match_counts)

    def search(
        self,
        views: Sequence[TextView],
        match_counts: MatchCounts,
        budgets: SearchBudgets,
        texts: Sequence[InspectedText] = (),
        after: int = -1,
    ) -> Iterator[tuple[TextView, int, int, Rule]]:
        """Record all matches, and yield those to mask. `texts` are those that the views come from, to find ids among
        them. The matches of rules that end before position `after` of the text are ignored."""
        strings = [view.text for view in views]
        found = self.literals is not None and self.literals.contained_in(strings)
        literal_sources = self._literal_sources(views) if found else {}
        joined = "\0".join(strings) if self.rules else ""
        for guardrail in self.guardrails:
            for source in literal_sources.get(guardrail.order, ()):
                guardrail.record_block(match_counts, source)
            for rule in guardrail.rules:
                if not rule.may_match(joined):
                    continue
                for view in views:
                    # Rules do not search ids: random ids contain numbers that detectors find, and a masked id is of no use.
                    if not texts or getattr(texts[view.index], "kind", TEXT) != ID:
                        yield from _matches(rule, view, match_counts, budgets, after)

    def _literal_sources(self, views: Sequence[TextView]) -> dict[int, list[str]]:
        """Return the source of every literal match, by the order of its guardrail."""
        sources: dict[int, list[str]] = {}
        matcher = self.literals
        assert matcher is not None
        for view in views:
            accepts = view.accepts_folded(matcher.folder())
            for number, start, end in matcher.literals.find(matcher.fold(view.text)):
                if accepts is None or accepts(start, end):
                    for guardrail in matcher.guardrails_of[number]:
                        sources.setdefault(guardrail.order, []).append(view.source)
        return sources


def _matches(
    rule: Rule, view: TextView, match_counts: MatchCounts, budgets: SearchBudgets, after: int
) -> Iterator[tuple[TextView, int, int, Rule]]:
    for start, end, first, last in rule.find_all(view.text, match_counts, budgets):
        if view.accepts is not None and not view.accepts(start, end):
            continue
        if after >= 0 and view.source_span(start, end)[1] <= after:
            continue
        if rule.blocks:
            rule.guardrail.record_block(match_counts, view.source)
        elif first < last:
            rule.guardrail.record_mask(match_counts, view.source)
            if rule.guardrail.enforced:
                yield view, first, last, rule


def _apply_masks(inspected: InspectedText, masking: Masking) -> Iterator[TextRef]:
    position = 0
    refs = [inspected] if isinstance(inspected, TextRef) else [ref for part in inspected.parts for ref in part]
    for ref in refs:
        text = masking.apply(ref.text, position)
        position += len(ref.text)
        if text != ref.text:
            ref.replacement = text
            yield ref


def compile_guardrails(specs: Sequence[GuardrailSpec], max_lengths: dict[str, int]) -> list[Guardrail]:
    """Compile guardrails. `resources.rules` has checked their patterns."""
    guardrails: list[Guardrail] = []
    rules = 0
    for order, spec in enumerate(specs):
        guardrail = Guardrail(spec.name, order=order, enforced=spec.enforcement == "block")
        guardrails.append(guardrail)
        for finder, blocks, token in _finders(spec, max_lengths.get(spec.name)):
            guardrail.rules.append(Rule(guardrail, finder, order=rules, blocks=blocks, token=token))
            rules += 1
        if spec.kind == "keyword":
            guardrail.literals = [pattern.value for pattern in spec.patterns if pattern.kind == "literal"]
    return guardrails


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
        token = _token(pattern.name or "custom") if pattern.replacement is None else pattern.replacement
        yield RegexFinder(pattern.value, max_length), pattern.action == "block", token


def _token(name: str) -> str:
    return f"[{name.upper()}_REDACTED]"
