"""Row types of the flag table. Rows are plain tuples, because the table is built at every start, even for `--help`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

__all__ = [
    "MAX_TOKENS",
    "Flag",
    "Group",
    "Kind",
    "Positional",
    "UnsupportedFlag",
    "by_spelling",
    "count",
    "expected_value",
    "seconds",
    "tokens",
]

Kind = Literal["bool", "enum", "extra", "float", "headers", "int", "list", "path", "str"]
"""`extra` and `headers` are key-value pairs: `extra` (body fields) converts values to JSON types, `headers` keeps strings."""


MAX_TOKENS = 10_000_000
"""Largest length of one text."""


class Flag(NamedTuple):
    name: str
    """AIPerf's first spelling, or Penstock's own for a flag that AIPerf does not have."""
    kind: Kind
    help: str
    """`{formats}` stands for the names of the dataset formats."""
    target: str | None = None
    """Key of the value in `ParsedArguments`; a dotted path in `Settings` for `profile`. None: the value is only checked."""
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    default: str = ""
    """As the help shows it."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    hard_min: float = 0.0
    hard_max: float = 1_000_000_000
    """Limits that catch typing errors: values beyond them exceed any clock or memory. The help does not mention them."""
    allows_inf: bool = False
    choices: tuple[str, ...] = ()
    unsupported_choices: tuple[str, ...] = ()
    """Choices of AIPerf that this version does not support."""
    plugin_group: str = ""
    """Entry-point group whose names are choices too."""
    comma_separated: bool = False
    sweepable: bool = False
    """A comma-separated value is a parameter sweep."""
    short: str = ""
    """Name of the parameter in the folders and files of a sweep; empty: the name of the flag."""
    secret: bool = False
    """The value appears in no message and no artifact."""
    url: bool = False
    """Credentials inside the value are redacted wherever it is shown."""
    implied: str | None = None
    """Value of the flag when none follows it; None: a value is required."""
    stored_value: bool = True
    """Value that a boolean flag stores."""
    always_on: bool = False
    """This boolean flag describes the only behaviour of this version, so it cannot be turned off."""
    penstock_only: bool = False
    """AIPerf does not have this flag."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def parameter(self) -> str:
        """Name of the parameter in the folders and files of a sweep."""
        return self.short or self.name.removeprefix("--").replace("-", "_")

    def stores(self, spelling: str) -> bool:
        """Return the value that a boolean flag stores: the alias `--no-x` of `--x` stores the opposite."""
        negated = spelling.replace("_", "-") == f"--no-{self.name.removeprefix('--')}"
        return self.stored_value is not negated

    @property
    def accumulates(self) -> bool:
        return self.kind in ("extra", "headers", "list")

    @property
    def takes_several(self) -> bool:
        """True if several values may follow the flag."""
        return self.accumulates and not self.comma_separated


def count(name: str, text: str, target: str, **options: Any) -> Flag:
    """Return a flag for a number of things, at least one."""
    return Flag(name, "int", text, target, "N", ge=1, **options)


def tokens(name: str, text: str, target: str, **options: Any) -> Flag:
    """Return a flag for a length in tokens, at least one."""
    return Flag(name, "int", text, target, "TOKENS", ge=1, hard_max=MAX_TOKENS, **options)


def seconds(name: str, text: str, target: str, **options: Any) -> Flag:
    """Return a flag for a time above zero."""
    return Flag(name, "float", text, target, "SECONDS", gt=0, hard_min=0.001, **options)


class Group(NamedTuple):
    title: str
    flags: tuple[Flag, ...]


class Positional(NamedTuple):
    """An argument without a flag. Positionals are filled in the order of their rows."""

    name: str
    """As the help shows it, in capitals."""
    help: str
    """A noun phrase: it completes "name …" when the argument is missing."""
    target: str
    kind: Kind = "path"
    choices: tuple[str, ...] = ()
    required: bool = True
    repeated: bool = False
    """It takes all arguments that follow; its value is a list."""

    @property
    def flag(self) -> Flag:
        """The flag row that reads the same values."""
        return Flag(self.name, self.kind, self.help, self.target, choices=self.choices)


class UnsupportedFlag(NamedTuple):
    """An AIPerf flag that Penstock knows only by name, in order to refuse it by name."""

    name: str
    aliases: tuple[str, ...] = ()
    hint: str = ""
    """What to use instead."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


def by_spelling(rows: Iterable[Flag | UnsupportedFlag]) -> dict[str, Flag | UnsupportedFlag]:
    return {spelling: row for row in rows for spelling in row.spellings}


def expected_value(flag: Flag) -> str:
    """Describe the values of a flag, in words that follow "must be"."""
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
