"""The guardrails of one hook, compiled, and the inspection of texts that are complete.

Every guardrail reads the original text: what one masks, a later one still sees. The first that blocks, in the file's order,
ends the chain, and nothing is masked then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import regex

from penstock.gateway.guardrails.detectors import DETECTORS, Finder, Match
from penstock.gateway.guardrails.finders import RegexFinder, Undecided, regex_problem
from penstock.gateway.guardrails.inspection import Tally
from penstock.gateway.guardrails.literals import Literals
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.texts import Line, Slot, line_texts
from penstock.gateway.resources import GuardrailSpec, Pattern

__all__ = ["Blocked", "Chain", "Guard", "Rule", "Words", "guardrail_problems"]


_CONTEXT = 64
"""What the detectors look behind, with room; a regular expression of the operator's own may look as far as it reaches."""


class Blocked(Exception):
    """An enforced guardrail found what it blocks. Whoever ends the inspection counts it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard.name)
        self.guard = guard

    def count(self, tally: Tally) -> None:
        tally.add(self.guard.order, self.guard.name, "blocked", "")


class Rule:
    """One detector or regular expression of a guardrail."""

    __slots__ = ("blocks", "finder", "guard", "order", "token")

    def __init__(self, guard: Guard, finder: Finder, *, order: int, blocks: bool, token: str) -> None:
        self.guard = guard
        self.finder = finder
        self.order = order
        self.blocks = blocks
        self.token = token

    def matches(self, text: str) -> Iterator[Match]:
        position = 0
        try:
            while (match := self.finder.find(text, position)) is not None:
                yield match
                position = match[1] if match[1] > match[0] else match[0] + 1
        except Undecided:
            if self.guard.enforced:
                raise Blocked(self.guard) from None


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

    __slots__ = ("context", "guards", "rules", "watched", "windowed", "words")

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
        self.windowed = all(rule.finder.reach is not None for rule in self.rules if rule.guard.enforced)
        own = [rule.finder.reach or 0 for rule in self.rules if isinstance(rule.finder, RegexFinder)]
        self.context = max([_CONTEXT, *own])
        """Characters before a position that can decide what begins there."""

    @property
    def enforced(self) -> bool:
        return any(guard.enforced for guard in self.guards)

    def examine(self, lines: Sequence[Slot | Line], tally: Tally) -> bool:
        """Masks in place and says whether it did; raises `Blocked`."""
        if not lines:
            return False
        texts = line_texts(lines)
        found = self._words(lines) if self._any_words(texts) else {}
        together = "\0".join(texts) if self.rules else ""
        maskings: dict[int, Masking] = {}
        for guard in self.guards:
            for source in found.get(guard.order, ()):
                guard.blocks(tally, source)
            for rule in guard.rules:
                if rule.finder.separable and rule.finder.find(together, 0) is None:
                    continue
                for number, line in enumerate(lines):
                    source = line.source if isinstance(line, Slot) else line.slots[0].source
                    for match in _in_line(rule, line):
                        if rule.blocks:
                            guard.blocks(tally, source)
                            continue
                        if match[2] == match[3]:
                            continue
                        guard.masks(tally, source)
                        if guard.enforced:
                            maskings.setdefault(number, Masking()).add(match[2], match[3], rule.order, rule.token)
        for number, masking in maskings.items():
            line = lines[number]
            position = 0
            for slot in (line,) if isinstance(line, Slot) else line.slots:
                text = masking.cut(slot.text, position)
                position += len(slot.text)
                if text != slot.text:
                    slot.write(text)
        return bool(maskings)

    def _any_words(self, texts: list[str]) -> bool:
        return any(
            words.literals.find(words.separator.join(texts).casefold())
            for words in (self.words, self.watched)
            if words is not None
        )

    def _words(self, lines: Sequence[Slot | Line]) -> dict[int, list[str]]:
        """For each guardrail whose literals there are: the sources, one for each time."""
        found: dict[int, list[str]] = {}

        def note(guards: Iterable[Guard], source: str) -> None:
            for guard in guards:
                found.setdefault(guard.order, []).append(source)

        for words in (self.words, self.watched):
            if words is None:
                continue
            for line in lines:
                if isinstance(line, Slot):
                    note(words.guards(line.text.casefold()), line.source)
                    continue
                slots = [slot.text.casefold() for slot in line.slots]
                source = line.slots[0].source
                if not line.parts:
                    note(words.guards("".join(slots)), source)
                    continue
                for text in slots:
                    note(words.guards(text), source)
                crosses = _crossing(slots)
                for number, start, end in words.literals.find("".join(slots)):
                    if crosses(start, end):
                        note(words.owners[number], source)
        return found


def _in_line(rule: Rule, line: Slot | Line) -> Iterator[Match]:
    if isinstance(line, Slot):
        yield from rule.matches(line.text)
        return
    texts = [slot.text for slot in line.slots]
    if not line.parts:
        yield from rule.matches("".join(texts))
        return
    position = 0
    for text in texts:
        for start, end, first, last in rule.matches(text):
            yield start + position, end + position, first + position, last + position
        position += len(text)
    crosses = _crossing(texts)
    for match in rule.matches("".join(texts)):
        if crosses(match[0], match[1]):
            yield match


def _crossing(texts: list[str]) -> Callable[[int, int], bool]:
    """Tells whether a stretch of the joined texts lies in more than one of them."""
    borders: list[int] = []
    position = 0
    for text in texts[:-1]:
        position += len(text)
        borders.append(position)
    return lambda start, end: any(start < border < end for border in borders)


def _finders(spec: GuardrailSpec, max_length: int | None) -> Iterator[tuple[Finder, bool, str]]:
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
    return regex_problem(pattern.value) if pattern.kind == "regex" else None
