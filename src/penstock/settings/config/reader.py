"""Translates the nodes of a configuration file to the typed values that the flags would give, by the table of keys."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from penstock.errors import UserError
from penstock.secrets import REDACTED
from penstock.settings.config.document import Node, snake_case
from penstock.settings.config.keys import (
    Alias,
    Distribution,
    Inverted,
    Refused,
    Row,
    Section,
    Special,
    find_flag,
    flags_of,
    rows,
)
from penstock.settings.flag_values import parse_bool, read_value
from penstock.settings.flags import SPELLINGS, Flag, UnsupportedFlag, expected_value
from penstock.settings.schema import NumberDistribution
from penstock.suggest import nearest

_ALTERNATIVES = (
    ("model", "models"),
    ("url", "urls"),
    ("dataset", "datasets"),
    ("phases", "profiling"),
    ("phases", "warmup"),
    ("mean", "value"),
    ("median", "stddev"),
    ("peaks", "points"),
    ("path", "points"),
)
"""Keys of one section that say the same."""
_FIRST = ("benchmark", "phases", "profiling", "type")
"""Keys that are read before others of their section: the warmup can refer to the profiling phase, the keys of a phase to its
type, and the parameters of a sweep replace values of the benchmark."""
_LAST = ("enabled",)
"""Keys that are read after others of their section: one that turns a feature off removes what they have set."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|sec|m|min|h|hr|hour)\Z", re.IGNORECASE)
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600}
_PER_SECOND = {"SECONDS": 1, "MS": 1000}
"""The number of a flag's units in a second, by its metavariable."""
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*\Z")
_MOST_LISTED = 12
_NORMAL = {"mean", "value", "stddev"}
_OWN_NUMBERS = ("mean", "value", "min", "max")
"""Keys of a distribution whose numbers have the limits of the flag; those of the others are at least 0."""


class Reader:
    """Collects values and errors. A subclass has a method `read_FORM` for each special form of the table."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        """By the targets of the flags."""
        self.spellings: dict[str, str] = {}
        """For each target, the file, line and key of its value."""
        self.dropped: set[str] = set()
        """Targets whose values in another part of the file are replaced, though this part gives none."""
        self.errors: list[tuple[int, str]] = []
        """Sentences with their lines."""

    def section(self, node: Node, keys: Section) -> None:
        if node.is_scalar and "" in keys:
            self._take(keys[""], node)
            return
        if not self._is(node, "map", "a mapping of keys"):
            return
        written: dict[str, Node] = {}
        for child in sorted(node.children, key=_rank):
            key = snake_case(child.key)
            if key in written:
                self._error(child, f"is also written {written[key].key}; keep one of them.")
            elif key not in keys:
                self.errors.append((child.line, unknown_key(child, node.path, keys)))
            elif child.kind != "null":
                self._take(keys[key], child)
            written[key] = child
        for one, other in _ALTERNATIVES:
            if {one, other} <= written.keys() & keys.keys():
                self._error(written[other], f"cannot stand beside {written[one].key}; keep one of them.")

    def _take(self, row: Row, node: Node) -> None:
        match row:
            case str():
                self._flag(row, node)
            case Inverted(flag):
                self._inverted(flag, node)
            case Distribution():
                self._distribution(row, node)
            case Alias(alias):
                self._take(alias, node)
            case Refused(hint):
                self._refuse(node, hint)
            case Special(form):
                read: Callable[[Node, Special], None] = getattr(self, f"read_{form}")
                read(node, row)
            case _:
                self.section(node, row)

    def _error(self, node: Node, rest: str) -> None:
        """Add a sentence that begins with the name of the node."""
        self.errors.append((node.line, f"{node.name} {rest}"))

    # values of flags

    def _flag(self, spelling: str, node: Node, text: str | None = None) -> None:
        """Read the value of a flag. `text` replaces that of the node."""
        flag = find_flag(spelling)
        if isinstance(flag, UnsupportedFlag):
            self._refuse(node)
        elif flag.kind in ("headers", "extra"):
            self._pairs(flag, node)
        elif node.kind == "seq" and (flag.kind == "list" or flag.sweepable):
            self._sequence(flag, node)
        elif text is not None:
            self._read(flag, node, text)
        elif not node.is_scalar:
            self._error(node, f"must be {expected_value(flag)}, not {describe(node)}.")
        elif self._is_usable(node):
            self._read(flag, node, flag_text(flag, node))

    def _inverted(self, spelling: str, node: Node) -> None:
        flag = find_flag(spelling)
        value = parse_bool(node.text) if node.is_scalar else None
        if value and isinstance(flag, Flag) and flag.always_on:
            self._refuse(node)
        else:
            self._flag(spelling, node, None if value is None else str(not value))

    def _read(self, flag: Flag, node: Node, text: str) -> None:
        if has_unknown_unit(flag, text):
            unit = flag.metavar.lower()
            self._error(node, f"must be a number of {unit}, or have a unit as in 30s, 5m or 2h, not {describe(node)}.")
            return
        try:
            is_list = flag.kind == "list" and text.strip()
            self._keep(flag, node, [text.strip()] if is_list else read_value(flag, node.name, text))
        except UserError as error:
            self.errors.append((node.line, hide_value(str(error), text, node)))

    def _keep(self, flag: Flag, node: Node, value: Any) -> None:
        target = flag.target
        if target is None:
            return
        if self.values.setdefault(target, value) != value:
            self._error(node, f"and {self.spellings[target]} set the same value; keep one of them.")
        self.spellings.setdefault(target, node.name)

    def _sequence(self, flag: Flag, node: Node) -> None:
        if not node.children and flag.implied is not None:
            self._keep(flag, node, [])
        elif not node.children or not all(child.is_scalar for child in node.children):
            self._error(node, "must be a list of values.")
        elif self._all_usable(node):
            if flag.kind == "list":
                self._keep(flag, node, [child.text.strip() for child in node.children])
            else:
                self._read(flag, node, ",".join(flag_text(flag, child) for child in node.children))

    def _pairs(self, flag: Flag, node: Node) -> None:
        if not self._is(node, "map", "a mapping of names to values"):
            return
        if not self._all_usable(node):
            return
        if flag.kind == "extra":
            self._add_pairs(flag, node, list(node.value().items()))
        elif node.children and self._all_scalars(node, "a text"):
            self._read(flag, node, json.dumps({child.key: child.text for child in node.children}))

    def _add_pairs(self, flag: Flag, node: Node, pairs: list[tuple[str, Any]]) -> None:
        target = str(flag.target)
        self.values.setdefault(target, []).extend(pairs)
        self.spellings.setdefault(target, node.name)

    def _distribution(self, row: Distribution, node: Node) -> None:
        mean, stddev = find_flag(row.mean), find_flag(row.stddev)
        if isinstance(mean, UnsupportedFlag) or isinstance(stddev, UnsupportedFlag):
            self._refuse(node)
            return
        shape_target = distribution_target(mean)
        given = {snake_case(child.key) for child in node.children if child.kind != "null"}
        if node.kind != "map":
            self._flag(row.mean, node)
            self.dropped |= {str(stddev.target), shape_target}
        elif given <= {*_NORMAL, "type"}:
            keys: dict[str, Row] = {"mean": row.mean, "value": row.mean, "stddev": row.stddev}
            self.section(node, keys | {"type": Special("distribution_type")})
            self.dropped |= {shape_target, *([str(stddev.target)] if "value" in given else [])}
        elif (shape := self._shape(mean, node)) is not None:
            self._keep(mean, node, shape.expected)
            self._keep(mean._replace(target=shape_target), node, shape)
            self.dropped.add(str(stddev.target))

    def read_distribution_type(self, node: Node, _row: Special) -> None:
        """Check the name of a distribution; its other keys say the same."""
        self._choice(node, ("normal", "fixed", "lognormal", "multimodal", "empirical"))

    def _shape(self, flag: Flag, node: Node) -> NumberDistribution | None:
        """Return the distribution of a number with the limits of its flag; None after an error."""
        reader = _ShapeReader(flag)
        shape = reader.read(node)
        self.errors += reader.errors
        return shape

    # checks

    def _is(self, node: Node, kind: str, description: str) -> bool:
        if node.kind != kind:
            self._error(node, f"must be {description}, not {describe(node)}.")
        return node.kind == kind

    def _all_scalars(self, node: Node, description: str) -> bool:
        wrong = [child for child in node.children if not child.is_scalar or child.kind == "null"]
        for child in wrong:
            self._error(child, f"must be {description}, not {describe(child) if child.kind != 'null' else 'null'}.")
        return not wrong

    def _all_usable(self, node: Node) -> bool:
        return all(list(map(self._is_usable, node.children)))  # with the errors of every child

    def _is_usable(self, node: Node) -> bool:
        """Return whether the text of a node is a value, and neither redacted nor a template; add an error if it is not."""
        if node.text == REDACTED:
            self._error(node, "was redacted when it was written; put the value in again, as ${NAME}.")
        else:
            return True
        return False

    def _refuse(self, node: Node, hint: str = "") -> None:
        """Refuse a key that Penstock does not have, unless its value asks for nothing."""
        if not node.off:
            note = f" ({hint})" if hint else ""
            self._error(node, f"is a key of AIPerf that this version of Penstock does not have yet; remove it{note}.")

    def _choice(self, node: Node, choices: tuple[str, ...]) -> str:
        """Return the choice that a scalar names, or "" after an error."""
        text = snake_case(node.text.strip())
        if node.is_scalar and text in choices:
            return text
        guess = nearest(text, choices)
        hint = f" (did you mean {guess}?)" if guess else ""
        listed = " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
        self._error(node, f"must be {listed}, not {describe(node)}{hint}.")
        return ""


class _ShapeReader(Reader):
    """Reads a distribution with keys such as `median` or `peaks`; its values are by the names of the keys."""

    def __init__(self, flag: Flag) -> None:
        super().__init__()
        self._flag_row = flag
        self._parts: list[NumberDistribution] = []

    def read(self, node: Node, *, weighted: bool = False) -> NumberDistribution | None:
        numbers = (*_OWN_NUMBERS, "stddev", "median", *(("weight",) if weighted else ()))
        keys: dict[str, Row] = dict.fromkeys(numbers, Special("number"))
        keys |= {"peaks": Special("parts"), "points": Special("parts"), "type": Special("distribution_type")}
        self.section(node, keys)
        values = self.values
        mean, median = values.get("mean", values.get("value")), values.get("median")
        if not self.errors and (mean is None) is not bool(self._parts):
            rule = (
                "has a mean beside its parts; keep one of them" if self._parts else "needs mean, value, peaks or points"
            )
            self._error(node, f"{rule}.")
        elif not self.errors and self._parts and {"stddev", "median"} & values.keys():
            self._error(node, "has peaks or points, which have their own stddev and median.")
        elif median is not None and mean is not None and not 0 < median <= mean:
            self._error(node, f"needs a median above 0 and not above the mean, {mean:g}, not {median:g}.")
        elif values.get("min", -math.inf) > values.get("max", math.inf):
            self._error(node, f"has a min, {values['min']:g}, above its max, {values['max']:g}.")
        if self.errors:
            return None
        return NumberDistribution(
            mean=mean or 0.0,
            stddev=values.get("stddev", 0.0),
            median=median,
            parts=tuple(self._parts),
            weight=values.get("weight", 1.0),
            low=values.get("min"),
            high=values.get("max"),
        )

    def read_number(self, node: Node, _row: Special) -> None:
        if not node.is_scalar:
            self._error(node, f"must be a number, not {describe(node)}.")
        elif self._is_usable(node):
            flag = self._flag_row._replace(kind="float", sweepable=False, target=snake_case(node.key))
            if flag.target not in _OWN_NUMBERS:
                flag = flag._replace(ge=0, gt=None, le=None, hard_min=0)
            self._read(flag, node, flag_text(flag, node))

    def read_parts(self, node: Node, _row: Special) -> None:
        for child in node.children if self._is(node, "seq", "a list of distributions") else ():
            reader = _ShapeReader(self._flag_row)
            part = reader.read(child, weighted=True)
            self.errors += reader.errors
            self._parts += [] if part is None else [part]
        if not self.errors and sum(part.weight for part in self._parts) <= 0:
            self._error(node, "needs at least one entry with a weight above 0.")


def distribution_target(flag: Flag) -> str:
    """Return the target of a distribution that replaces the mean of a flag."""
    return f"input.distributions.{str(flag.target).removeprefix('input.')}"


def _rank(node: Node) -> int:
    key = snake_case(node.key)
    return _FIRST.index(key) if key in _FIRST else len(_FIRST) + (key in _LAST)


# the texts of scalars, as flags take them and as messages may show them


def flag_text(flag: Flag, node: Node) -> str:
    """Return the text of a scalar as the flag takes it: without a unit of time, and without the .0 of a whole number."""
    text = node.text.strip()
    if flag.metavar in _PER_SECOND and (match := _DURATION.match(text)):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        return f"{seconds * _PER_SECOND[flag.metavar]:.12g}"
    if flag.kind == "int" and (match := _WHOLE.match(text)):
        return match[1]
    if flag.kind in ("int", "float") and node.kind == "int":
        return str(node.value())  # also that of 0x10
    return node.text


def has_unknown_unit(flag: Flag, text: str) -> bool:
    return flag.metavar in _PER_SECOND and text[:1].isdigit() and text[-1:].isalpha()


def describe(node: Node) -> str:
    """Return the value in words that follow "not"."""
    if node.is_scalar:
        return f"the value of {node.variables}" if node.variables else repr(node.text)
    return "a list" if node.kind == "seq" else "a mapping"


def hide_value(message: str, text: str, node: Node) -> str:
    """Replace a value from the environment, which may be secret, in an error message."""
    return message.replace(repr(text), describe(node)) if node.variables else message


# sentences for unknown keys, with the likely name


def camel_case(path: str) -> str:
    """Return a key path as AIPerf's documentation writes it."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), path)


def unknown_key(node: Node, parent: str, keys: Section) -> str:
    return f"{node.name} is not a key of {parent or 'the file'}; {_hint(snake_case(node.key), keys)}"


def _hint(key: str, keys: Section) -> str:
    if (path := _same_key_elsewhere(key) or _key_of_flag(key)) is not None:
        return f"did you mean {camel_case(path)}?"
    usual = [name for name, row in keys.items() if name and not isinstance(row, Refused)]
    if (guess := nearest(key, usual, cutoff=0.6)) is not None:
        return f"did you mean {camel_case(guess)}?"
    if len(usual) <= _MOST_LISTED:
        return f"its keys are {', '.join(map(camel_case, usual))}."
    return "see `config init` for the usual ones."


def _same_key_elsewhere(key: str) -> str | None:
    """Return the path of the section or value with this key, if there is one outside phases, which share their keys."""
    found = list(dict.fromkeys(_prefix(path, key) for path, _ in rows() if key in path.split(".")))
    found = [path for path in found if not path.startswith("benchmark.warmup.")]
    return found[0] if len(found) == 1 else None


def _prefix(path: str, key: str) -> str:
    names = path.split(".")
    return ".".join(names[: names.index(key) + 1])


def _key_of_flag(key: str) -> str | None:
    """Return the key of the flag with this name."""
    flag = SPELLINGS.get(f"--{key.replace('_', '-')}")
    return next((path for path, row in rows() if flag is not None and flag.name in flags_of(row)), None)
