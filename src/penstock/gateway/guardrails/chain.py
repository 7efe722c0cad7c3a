"""The guardrails of one hook, compiled, and the inspection of texts that are complete.

Every guardrail reads the original text: what one masks, a later one still sees. The first that blocks, in the file's order,
ends the chain, and nothing is masked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import regex

from penstock.gateway.guardrails.detectors import DETECTORS, Finder, Match
from penstock.gateway.guardrails.finders import RegexFinder, regex_error
from penstock.gateway.guardrails.inspection import Tally
from penstock.gateway.guardrails.literals import Literals
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.search_budget import MATCH_S, SearchBudgets, Undecided
from penstock.gateway.guardrails.search_texts import View, views_of
from penstock.gateway.guardrails.texts import Line, Slot
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern

__all__ = ["Blocked", "Chain", "Guard", "Rule", "Words", "guardrail_problems"]

_CONTEXT = 64
"""What the detectors look behind, with room; a regular expression of the operator's own may look as far as it reaches."""

_LONGEST_LITERAL = 4096
"""At each event of a stream its end is compared with the beginnings of the literals."""


class Blocked(Exception):
    """An enforced guardrail found what it blocks, or ran out of time. Whoever ends the inspection counts it."""

    def __init__(self, guard: Guard, *, timed_out: bool = False) -> None:
        super().__init__(guard.name)
        self.guard = guard
        self.timed_out = timed_out

    def count(self, tally: Tally) -> None:
        tally.add(self.guard.order, self.guard.name, "timed_out" if self.timed_out else "blocked", "")


class Rule:
    """One detector or regular expression of a guardrail."""

    __slots__ = ("blocks", "finder", "guard", "order", "token")

    def __init__(self, guard: Guard, finder: Finder | RegexFinder, *, order: int, blocks: bool, token: str) -> None:
        self.guard = guard
        self.finder = finder
        self.order = order
        self.blocks = blocks
        self.token = token

    def find(self, text: str, position: int, patience: SearchBudgets) -> Match | None:
        """The leftmost match from `position` on; raises `Undecided`."""
        finder = self.finder
        budget = patience.budget(enforced=self.guard.enforced)
        match = finder.find(text, position, budget) if isinstance(finder, RegexFinder) else finder.find(text, position)
        if match is not None:
            budget.spend(MATCH_S, match[1] - position)
        return match

    def may_match(self, together: str) -> bool:
        """Whether there can be a match in the texts that were joined with a control character.

        Only detectors are asked: they take no time that would have to be bounded, so it does not matter what is left of it.
        """
        return isinstance(self.finder, RegexFinder) or self.finder.find(together, 0) is not None

    def matches(self, text: str, tally: Tally, patience: SearchBudgets) -> Iterator[Match]:
        position = 0
        try:
            while (match := self.find(text, position, patience)) is not None:
                yield match
                position = match[1] if match[1] > match[0] else match[0] + 1
        except Undecided:
            if not patience.last:
                raise
            self.guard.gives_up(tally)


class Guard:
    __slots__ = ("enforced", "name", "order", "rules")

    def __init__(self, name: str, *, order: int, enforced: bool) -> None:
        self.name = name
        self.order = order
        self.enforced = enforced
        self.rules: list[Rule] = []

    def blocks(self, tally: Tally, source: str) -> None:
        if self.enforced:
            raise Blocked(self)
        tally.add(self.order, self.name, "would_block", source)

    def gives_up(self, tally: Tally) -> None:
        """What it was looking for may be there."""
        if self.enforced:
            raise Blocked(self, timed_out=True) from None
        tally.add(self.order, self.name, "timed_out", "")

    def masks(self, tally: Tally, source: str) -> None:
        tally.add(self.order, self.name, "masked" if self.enforced else "would_mask", source)


class Words:
    """The literals of several guardrails, case-folded, in one automaton."""

    __slots__ = ("literals", "owners", "separator")

    def __init__(self, entries: Iterable[tuple[str, Guard]]) -> None:
        owners: dict[str, list[Guard]] = {}
        for literal, guard in entries:
            known = owners.setdefault(literal.casefold(), [])
            if guard not in known:
                known.append(guard)
        self.literals = Literals(owners)
        self.owners = list(owners.values())
        # between texts that are searched in one go: a character in none of the literals, of ASCII where possible,
        # because folding 4 KB takes 1 µs then and 20 otherwise
        signs = map(chr, (*range(1, 9), *range(14, 32), *range(0xFDD0, 0xFDF0)))
        self.separator = next(sign for sign in signs if not any(sign in literal for literal in owners))

    def guards(self, folded: str, behind: int = 0) -> Iterator[Guard]:
        """Whose literals there are in the text that end behind a position, once for each."""
        for number, _, end in self.literals.find(folded):
            if end > behind:
                yield from self.owners[number]


class Chain:
    """Of guardrails that have no `guardrail_problems`."""

    __slots__ = ("context", "far", "guards", "near", "numeric", "rules", "watched", "windowed", "words")

    def __init__(self, specs: Sequence[GuardrailSpec], max_lengths: dict[str, int]) -> None:
        self.guards: list[Guard] = []
        self.rules: list[Rule] = []
        words: list[tuple[str, Guard]] = []
        for order, spec in enumerate(specs):
            guard = Guard(spec.name, order=order, enforced=spec.enforcement == "block")
            self.guards.append(guard)
            for finder, blocks, token in _finders(spec, max_lengths.get(spec.name)):
                guard.rules.append(Rule(guard, finder, order=len(self.rules), blocks=blocks, token=token))
                self.rules.append(guard.rules[-1])
            if spec.kind == "keyword":
                words.extend((pattern.value, guard) for pattern in spec.patterns if pattern.kind == "literal")
        enforced = [entry for entry in words if entry[1].enforced]
        watched = [entry for entry in words if not entry[1].enforced]
        self.words = Words(enforced) if enforced else None
        self.watched = Words(watched) if watched else None
        """Apart from the others, because they hold nothing back."""
        self.near = [rule for rule in self.rules if rule.finder.reach is not None]
        self.far = [rule for rule in self.rules if rule.finder.reach is None]
        """Without a bound on what they match."""
        self.numeric = [number for number, rule in enumerate(self.near) if rule.finder.numeric]
        """Places in `near`."""
        self.windowed = not any(rule.guard.enforced for rule in self.far)
        own = [rule.finder.reach or 0 for rule in self.rules if isinstance(rule.finder, RegexFinder)]
        self.context = max([_CONTEXT, *own])
        """Characters before a position that can decide what begins there."""

    @property
    def enforced(self) -> bool:
        return any(guard.enforced for guard in self.guards)

    def examine(self, lines: Sequence[Slot | Line], tally: Tally, patience: SearchBudgets) -> list[Slot]:
        """Gives the slots that are masked their new text, and says which; raises `Blocked`, and `Undecided`."""
        if not lines:
            return []
        views = views_of(lines)
        texts = [view.text for view in views]
        found = self._words(views) if self._any_words(texts) else {}
        together = "\0".join(texts) if self.rules else ""
        maskings: dict[int, Masking] = {}
        for guard in self.guards:
            for source in found.get(guard.order, ()):
                guard.blocks(tally, source)
            for rule in guard.rules:
                if rule.may_match(together):
                    for view in views:
                        _apply(rule, view, maskings, tally, patience)
        return [slot for number, masking in maskings.items() for slot in _masked(lines[number], masking)]

    def _any_words(self, texts: list[str]) -> bool:
        return any(
            words.literals.find(words.separator.join(texts).casefold())
            for words in (self.words, self.watched)
            if words is not None
        )

    def _words(self, views: Sequence[View]) -> dict[int, list[str]]:
        """For each guardrail whose literals there are: the sources, one for each time."""
        found: dict[int, list[str]] = {}
        for words in (self.words, self.watched):
            if words is None:
                continue
            for view in views:
                counts = view.counts_folded()
                for number, start, end in words.literals.find(view.text.casefold()):
                    if counts is None or counts(start, end):
                        for guard in words.owners[number]:
                            found.setdefault(guard.order, []).append(view.source)
        return found


def _apply(rule: Rule, view: View, maskings: dict[int, Masking], tally: Tally, patience: SearchBudgets) -> None:
    for start, end, first, last in rule.matches(view.text, tally, patience):
        if view.counts is not None and not view.counts(start, end):
            continue
        if rule.blocks:
            rule.guard.blocks(tally, view.source)
        elif first < last:
            rule.guard.masks(tally, view.source)
            if rule.guard.enforced:
                masking = maskings.setdefault(view.line, Masking())
                masking.add(*view.span(first, last), rule.order, view.spelled(rule.token))


def _masked(line: Slot | Line, masking: Masking) -> Iterator[Slot]:
    position = 0
    for slot in (line,) if isinstance(line, Slot) else line.slots:
        text = masking.cut(slot.text, position)
        position += len(slot.text)
        if text != slot.text:
            slot.new = text
            yield slot


def _finders(spec: GuardrailSpec, max_length: int | None) -> Iterator[tuple[Finder | RegexFinder, bool, str]]:
    """(finder, whether it blocks, what it puts in place). `max_length` is the longest match of its regexes, declared."""
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


def guardrail_problems(spec: GuardrailSpec) -> list[str]:
    """What is wrong with a guardrail's patterns and detectors, a sentence each; patterns are numbered, not quoted."""
    problems = [
        f"guardrail {spec.name!r}: there is no detector {name!r}; there are {', '.join(DETECTORS)}"
        for name, _ in spec.detectors
        if name not in DETECTORS
    ]
    for number, pattern in enumerate(spec.patterns):
        problem = _pattern_problem(pattern)
        if problem is not None:
            problems.append(f"guardrail {spec.name!r}: pattern {number + 1} {problem}")
    return problems


def _pattern_problem(pattern: Pattern) -> str | None:
    if not pattern.value:
        return "is empty, so it would match everything"
    if pattern.kind == "regex":
        return regex_error(pattern.value)
    size = len(pattern.value)
    return f"has {size} characters; a literal may have {_LONGEST_LITERAL}" if size > _LONGEST_LITERAL else None
