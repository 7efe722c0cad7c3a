"""One row of the table of flags. Plain tuples: the table is read at every start, also for `--help`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["MAX_TOKENS", "Flag", "Group", "Kind", "Positional", "UnsupportedFlag", "by_spelling", "expected_value"]

Kind = Literal["bool", "enum", "extra", "float", "headers", "int", "list", "path", "str"]
"""`extra` and `headers` are pairs: the first keeps types (body fields), the second keeps strings."""


MAX_TOKENS = 10_000_000
"""Of one text."""


class Flag(NamedTuple):
    name: str
    """AIPerf's first spelling, or ours where AIPerf has no such flag."""
    kind: Kind
    help: str
    target: str | None = None
    """Where the value goes in `Settings`; None: it is checked and already holds, so there is nothing to keep."""
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    default: str = ""
    """As shown to a reader."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    hard_min: float = 0.0
    hard_max: float = 1_000_000_000
    """Beyond these a number is a slip of the finger that no clock or memory can take; only who gives it hears of them."""
    allows_inf: bool = False
    """`inf` is a value."""
    choices: tuple[str, ...] = ()
    unsupported_choices: tuple[str, ...] = ()
    """Values that AIPerf takes and this version does not."""
    plugin_group: str = ""
    """A group of entry points whose names are choices, too."""
    comma_separated: bool = False
    """A comma parts the names in one value."""
    sweepable: bool = False
    """AIPerf reads a comma list here as a parameter sweep."""
    secret: bool = False
    """Its value appears in no message and no artifact."""
    url: bool = False
    """Its value may hold a password or a key, as URLs do, which are redacted wherever the value is shown."""
    implied: str | None = None
    """The text that the flag stands for when no value follows it; None: it needs a value."""
    stored_value: bool = True
    """What a boolean flag puts into its target when it is given."""
    always_on: bool = False
    """A boolean flag that is always true in this version, so it cannot be turned off."""
    penstock_only: bool = False
    """Penstock's own flag: AIPerf does not have it."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def accumulates(self) -> bool:
        return self.kind in ("extra", "headers", "list")

    @property
    def takes_several(self) -> bool:
        """Several values may follow the flag."""
        return self.accumulates and not self.comma_separated


class Group(NamedTuple):
    title: str
    flags: tuple[Flag, ...]


class Positional(NamedTuple):
    """An argument without a flag. Positionals are filled in the order of their rows."""

    name: str
    """As the help shows it, in capitals."""
    help: str
    """Completes the sentence `name …`."""
    target: str
    kind: Kind = "path"
    choices: tuple[str, ...] = ()
    required: bool = True

    @property
    def flag(self) -> Flag:
        """The row by which its text is read."""
        return Flag(self.name, self.kind, self.help, target=self.target, choices=self.choices)


class UnsupportedFlag(NamedTuple):
    """A flag of AIPerf that is known by name, so that it can be refused by name."""

    name: str
    aliases: tuple[str, ...] = ()
    hint: str = ""
    """What serves instead."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def by_spelling(rows: Iterable[Flag | UnsupportedFlag]) -> dict[str, Flag | UnsupportedFlag]:
    return {spelling: row for row in rows for spelling in row.spellings}


def expected_value(flag: Flag) -> str:
    """What a value of this flag must be, in words that follow "must be"."""
    if flag.kind == "enum":
        return f"one of {', '.join(flag.choices)}" if len(flag.choices) > 1 else flag.choices[0]
    if flag.kind in ("int", "float"):
        noun = "a whole number" if flag.kind == "int" else "a number"
        tail = " or inf" if flag.allows_inf else ""
        if flag.ge is not None and flag.le is not None:
            return f"{noun} from {flag.ge:g} to {flag.le:g}{tail}"
        if flag.ge is not None:
            return f"{noun} of at least {flag.ge:g}{tail}"
        if flag.gt is not None:
            return f"{noun} greater than {flag.gt:g}{tail}"
        return noun + tail
    return {
        "bool": "true or false",
        "extra": "key:value pairs or a JSON object",
        "headers": "Name:Value or a JSON object",
        "path": "a path",
    }.get(flag.kind, "a text")
