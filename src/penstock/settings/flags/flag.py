"""Row types of the flag table. Rows are plain tuples, because the table is built at every start, even for `--help`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from penstock.table_rows import table_rows

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


_USUAL_KINDS: dict[str, dict[str, Any]] = {
    "count": {"kind": "int", "metavar": "N", "ge": 1},
    "tokens": {"kind": "int", "metavar": "TOKENS", "ge": 1, "hard_max": MAX_TOKENS},
    "seconds": {"kind": "float", "metavar": "SECONDS", "gt": 0, "hard_min": 0.001},
}
"""Rows that many flags share: a number of things, a length of at least one token, a time above zero."""


def read_groups(table: str) -> tuple[Group, ...]:
    """Read a table of flags. A line without a bar is the title of a group.

    A row looks like the help of its flag:

        --concurrency-min, --min N | int experiment.search_min ge=1 sweepable
            Lowest concurrency of the search. [default: 1]

    After the bar follow the kind, or one of `_USUAL_KINDS`, the target (or -), and the other fields of `Flag`; a field
    without a value is true. Lists have bars: `choices=a|b`.
    """
    groups: list[tuple[str, list[Flag]]] = []
    for cells, text in table_rows(table):
        if len(cells) == 1:
            groups.append((cells[0], []))
        else:
            groups[-1][1].append(_read_flag(cells, text))
    return tuple(Group(title, tuple(flags)) for title, flags in groups)


def read_flags(table: str) -> tuple[Flag, ...]:
    """Read the rows of one group (see `read_groups`)."""
    return tuple(_read_flag(cells, text) for cells, text in table_rows(table))


def _read_flag(cells: list[str], text: str) -> Flag:
    names, facts = cells
    spellings, metavar = names.split(", "), ""
    if " " in spellings[-1]:
        spellings[-1], metavar = spellings[-1].split(" ")
    kind, target, *others = facts.split()
    fields = _USUAL_KINDS.get(kind, {"kind": kind}) | dict(map(_fact, others))
    if metavar:
        fields["metavar"] = metavar
    if text.endswith("]") and " [default: " in text:
        text, _, fields["default"] = text[:-1].rpartition(" [default: ")
    fields["target"] = None if target == "-" else target
    return Flag(spellings[0], help=text, aliases=tuple(spellings[1:]), **fields)


def _fact(word: str) -> tuple[str, Any]:
    """Return a field of `Flag` and its value."""
    name, equals, text = word.partition("=")
    if not equals:
        return name, True
    if name in ("ge", "gt", "le", "hard_min", "hard_max"):
        return name, float(text) if "." in text else int(text)
    if name in ("choices", "unsupported_choices"):
        return name, tuple(text.split("|"))
    return name, text if name != "stored_value" else text == "true"


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
