"""Reads a configuration file into the typed values that the flags would give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import UserError
from penstock.secrets import REDACTED
from penstock.settings.config.document import ConfigError, Node, read_document, snake_case
from penstock.settings.config.keys import (
    BENCHMARK,
    DATASET,
    KEYS,
    PHASE_TYPES,
    PROFILING,
    WARMUP,
    Alias,
    Distribution,
    Inverted,
    Refused,
    Row,
    Section,
    Special,
    flags_of,
)
from penstock.settings.config.unknown_keys import unknown_key
from penstock.settings.flag_values import ParsedArguments, parse_bool, read_value
from penstock.settings.flags import SPELLINGS, Flag, UnsupportedFlag, expected_value
from penstock.suggest import nearest

__all__ = ["read_config"]

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|sec|m|min|h|hr|hour)\Z", re.IGNORECASE)
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600}
_PER_SECOND = {"SECONDS": 1, "MS": 1000}
"""Metavariables of the flags that take a time, and their unit."""
_TEMPLATE = re.compile(r"\{\{.*\}\}", re.DOTALL)
_CLOSED_LOOP = "concurrency_burst"
_ALTERNATIVES = (
    ("model", "models"),
    ("url", "urls"),
    ("dataset", "datasets"),
    ("phases", "profiling"),
    ("phases", "warmup"),
    ("mean", "value"),
    ("path", "points"),
)
"""Keys of one section that say the same."""
_OTHER_DISTRIBUTIONS = ("min", "max", "median", "peaks", "points")


def read_config(path: str, environment: Mapping[str, str]) -> ParsedArguments:
    """Return the values of a file by the targets of their flags, or raise `UserError` with every error of the file.

    The spelling of a value is its file, line and key, so that all checks of the flags name them."""
    root = read_document(path, environment)
    reader = _Reader()
    reader.section(root, KEYS)
    if reader.errors:
        line = re.compile(re.escape(path) + ":([0-9]+)")
        raise ConfigError(
            path, sorted(reader.errors, key=lambda error: int(found[1]) if (found := line.search(error)) else 0)
        )
    return ParsedArguments(reader.values, reader.spellings)


class _Reader:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.spellings: dict[str, str] = {}
        self.errors: list[str] = []
        self._profiling_type = ""

    def section(self, node: Node, keys: Section) -> None:
        if not self._is(node, "map", "a mapping of keys"):
            return
        self._refuse_both(node, keys)
        if keys is KEYS:  # the parameters of a sweep replace values of the benchmark
            self._in_order(node, keys, first="benchmark")
        elif keys is BENCHMARK:
            self._in_order(node, keys, first="phases", then="profiling")
        else:
            self._in_order(node, keys, first="type")

    def _in_order(self, node: Node, keys: Section, first: str, then: str = "") -> None:
        rank = {first: 0, then: 1}
        written: dict[str, Node] = {}
        for child in sorted(node.children, key=lambda child: rank.get(snake_case(child.key), 2)):
            key = snake_case(child.key)
            if key in written:
                self.errors.append(f"{child.name} is also written {written[key].key}; keep one of them.")
            elif key not in keys:
                self.errors.append(unknown_key(child, node.path, keys))
            elif child.kind != "null":
                self._take(keys[key], child)
            written[key] = child

    def _refuse_both(self, node: Node, keys: Section) -> None:
        written = {snake_case(child.key): child for child in node.children}
        for one, other in _ALTERNATIVES:
            if one in written and other in written and one in keys and other in keys:
                self.errors.append(f"{written[other].name} cannot stand beside {written[one].key}; keep one of them.")

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
                read: Callable[[Node, Special], None] = getattr(self, f"_{form}")
                read(node, row)
            case _:
                self.section(node, row)

    # values of flags

    def _flag(self, spelling: str, node: Node, text: str | None = None) -> None:
        """Read the value of a flag. `text` replaces that of the node."""
        flag = SPELLINGS[spelling]
        if isinstance(flag, UnsupportedFlag):
            self._refuse(node)
        elif flag.kind in ("headers", "extra"):
            self._pairs(flag, node)
        elif node.kind == "seq" and (flag.kind == "list" or flag.sweepable):
            self._sequence(flag, node)
        elif self._is_scalar(node, flag) and self._is_usable(node):
            self._read(flag, node, _flag_text(flag, node) if text is None else text)

    def _inverted(self, spelling: str, node: Node) -> None:
        flag = SPELLINGS[spelling]
        value = parse_bool(node.text) if node.is_scalar else None
        if value and isinstance(flag, Flag) and flag.always_on:
            self._refuse(node)
        else:
            self._flag(spelling, node, None if value is None else str(not value))

    def _read(self, flag: Flag, node: Node, text: str) -> None:
        if flag.metavar in _PER_SECOND and text[:1].isdigit() and text[-1:].isalpha():
            self.errors.append(
                f"{node.name} must be a number of {flag.metavar.lower()}, or have a unit as in 30s, 5m or 2h, not "
                f"{_description(node)}."
            )
            return
        try:
            if flag.kind == "list" and text.strip():
                self._keep(flag, node, [text.strip()])
            else:
                self._keep(flag, node, read_value(flag, node.name, text))
        except UserError as error:
            self.errors.append(_without_value(str(error), text, node))

    def _keep(self, flag: Flag, node: Node, value: Any) -> None:
        target = flag.target
        if target is None:
            return
        if self.values.setdefault(target, value) != value:
            self.errors.append(f"{node.name} and {self.spellings[target]} set the same value; keep one of them.")
        self.spellings.setdefault(target, node.name)

    def _sequence(self, flag: Flag, node: Node) -> None:
        if not node.children or not all(child.is_scalar for child in node.children):
            self.errors.append(f"{node.name} must be a list of values.")
        elif not all(map(self._is_usable, node.children)):
            pass
        elif flag.kind == "list":
            self._keep(flag, node, [child.text.strip() for child in node.children])
        else:
            self._read(flag, node, ",".join(_flag_text(flag, child) for child in node.children))

    def _pairs(self, flag: Flag, node: Node) -> None:
        if not self._is(node, "map", "a mapping of names to values") or not all(map(self._is_usable, node.children)):
            return
        if flag.kind == "extra":
            self._add_fields(flag, node, list(node.value().items()))
        elif node.children:
            self._read(flag, node, json.dumps({child.key: child.text for child in node.children}))

    def _add_fields(self, flag: Flag, node: Node, pairs: list[tuple[str, Any]]) -> None:
        target = str(flag.target)
        self.values.setdefault(target, []).extend(pairs)
        self.spellings.setdefault(target, node.name)

    def _distribution(self, row: Distribution, node: Node) -> None:
        if isinstance(SPELLINGS[row.mean], UnsupportedFlag):
            self._refuse(node)
        elif node.kind != "map":
            self._flag(row.mean, node)
        else:
            keys: dict[str, Row] = {"mean": row.mean, "value": row.mean, "stddev": row.stddev}
            keys |= {"type": Special("distribution_type")}
            keys |= dict.fromkeys(_OTHER_DISTRIBUTIONS, Refused("a distribution has mean and stddev"))
            self.section(node, keys)

    def _distribution_type(self, node: Node, _row: Special) -> None:
        if node.text not in ("normal", "fixed"):
            self.errors.append(f"{node.name} must be normal or fixed in this version of Penstock, not {node.text!r}.")

    # checks

    def _is(self, node: Node, kind: str, description: str) -> bool:
        if node.kind != kind:
            self.errors.append(f"{node.name} must be {description}, not {_description(node)}.")
        return node.kind == kind

    def _is_scalar(self, node: Node, flag: Flag) -> bool:
        if not node.is_scalar:
            self.errors.append(f"{node.name} must be {expected_value(flag)}, not {_description(node)}.")
        return node.is_scalar

    def _is_usable(self, node: Node) -> bool:
        """Return whether the text of a scalar means what it says."""
        if node.text == REDACTED:
            self.errors.append(f"{node.name} was redacted when it was written; put the value in again, as ${{NAME}}.")
        elif node.is_scalar and _TEMPLATE.search(node.text) and not node.path.startswith("benchmark.endpoint.extra"):
            self.errors.append(
                f"{node.name} has a Jinja template, which Penstock does not have; use environment variables, as in "
                "${NAME:default}."
            )
        else:
            return True
        return False

    def _refuse(self, node: Node, hint: str = "") -> None:
        if not node.off:
            self.errors.append(
                f"{node.name} is a key of AIPerf that this version of Penstock does not have yet; remove it"
                f"{f' ({hint})' if hint else ''}."
            )

    def _choice(self, node: Node, choices: tuple[str, ...]) -> str:
        """Return the choice that a scalar names, or "" after an error."""
        text = snake_case(node.text.strip()) if node.is_scalar else ""
        if text in choices:
            return text
        guess = nearest(text, choices)
        self.errors.append(
            f"{node.name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {_description(node)}"
            f"{f' (did you mean {guess}?)' if guess else ''}."
        )
        return ""

    # special forms of the table

    def _schema_version(self, node: Node, _row: Special) -> None:
        if node.text not in ("2.0", "2"):
            self.errors.append(f'{node.name} must be "2.0", not {_description(node)}.')

    def _models(self, node: Node, row: Special) -> None:
        names, strategy = row.flags
        if node.kind != "map":
            self._flag(names, node)
            return
        self.section(node, {"strategy": strategy, "items": Special("model_items", (names,))})

    def _model_items(self, node: Node, row: Special) -> None:
        if not self._is(node, "seq", "a list of models"):
            return
        collected: list[Node] = []
        for item in node.children:
            if item.is_scalar:
                collected.append(item)
            elif self._is(item, "map", "a mapping with name"):
                collected += [child for child in item.children if child.key == "name"]
                others = dict.fromkeys(("weight", "lora", "modalities", "tokenizer"), Refused())
                self.section(item, {"name": Special("ignored"), **others})
        flag = SPELLINGS[row.flags[0]]
        if isinstance(flag, Flag) and collected:
            self._keep(flag, node, [child.text.strip() for child in collected if self._is_usable(child)])

    def _ignored(self, node: Node, _row: Special) -> None:
        """Accept a key that says nothing for Penstock."""

    _dataset_name = _phase_name = _phase_kind = _ignored

    def _template(self, node: Node, row: Special) -> None:
        names = {"body": "payload_template", "response_field": "response_field"}
        if not self._is(node, "map", "a mapping with body and responseField"):
            return
        flag = SPELLINGS[row.flags[0]]
        for child in node.children:
            if (name := names.get(snake_case(child.key))) is None:
                self.errors.append(unknown_key(child, node.path, dict.fromkeys(names, Refused())))
            elif isinstance(flag, Flag):
                self._add_fields(flag, node, [(name, child.text)])

    def _datasets(self, node: Node, _row: Special) -> None:
        if not self._is(node, "seq", "a list of datasets"):
            return
        if len(node.children) > 1:
            self.errors.append(f"{node.children[1].name} is a second dataset; this version of Penstock sends one.")
        elif node.children:
            self.section(node.children[0], DATASET)

    def _dataset_type(self, node: Node, row: Special) -> None:
        public = self._choice(node, ("synthetic", "file", "public")) == "public"
        if public and isinstance(SPELLINGS[row.flags[0]], UnsupportedFlag):
            self.errors.append(
                f"{node.name} public is not supported yet; this version of Penstock has synthetic and file."
            )

    def _phases(self, node: Node, _row: Special) -> None:
        """Read one phase, or a list of them: the profiling phase first, because the warm-up can refer to it."""
        phases = node.children if node.kind == "seq" else (node,)
        warmups = [phase for phase in phases if _is_warmup(phase)]
        for phase in (*(phase for phase in phases if phase not in warmups), *warmups):
            self.section(phase, WARMUP if phase in warmups else PROFILING)
        for kind, found in (("warm-up", warmups), ("profiling", [phase for phase in phases if phase not in warmups])):
            if len(found) > 1:
                self.errors.append(
                    f"{found[1].name} is a second {kind} phase; this version of Penstock runs one of each."
                )

    def _phase_type(self, node: Node, row: Special) -> None:
        pattern, schedule, no_schedule = row.flags
        self._profiling_type = kind = self._choice(node, PHASE_TYPES)
        if kind in ("poisson", "gamma", "constant"):
            self._flag(pattern, node, kind)
        if kind:
            self._flag(schedule if kind == "fixed_schedule" else no_schedule, node, "true")

    def _warmup_type(self, node: Node, row: Special) -> None:
        kind = self._choice(node, PHASE_TYPES)
        if kind in ("user_centric", "fixed_schedule"):
            self.errors.append(f"{node.name} must be concurrency, poisson, gamma or constant in a warm-up, not {kind}.")
        elif kind and kind != (self._profiling_type or "concurrency"):
            self._flag(row.flags[0], node, _CLOSED_LOOP if kind == "concurrency" else kind)

    def _rate(self, node: Node, row: Special) -> None:
        by_request, by_user = row.flags
        if self._profiling_type in ("concurrency", "fixed_schedule"):
            self.errors.append(
                f"{node.name} does not fit the type {self._profiling_type}; choose poisson, gamma, constant or "
                "user_centric."
            )
        else:
            self._flag(by_user if self._profiling_type == "user_centric" else by_request, node)

    def _ramp(self, node: Node, row: Special) -> None:
        if node.kind == "map":
            self.section(node, {"duration": row.flags[0], "strategy": Special("ramp_strategy")})
        else:
            self._flag(row.flags[0], node)

    def _ramp_strategy(self, node: Node, _row: Special) -> None:
        if node.text != "linear":
            self.errors.append(f"{node.name} must be linear in this version of Penstock, not {_description(node)}.")

    def _rate_series(self, node: Node, row: Special) -> None:
        self.section(node, {"path": row.flags[0], "points": Special("rate_points", row.flags)})

    def _rate_points(self, node: Node, row: Special) -> None:
        flag = SPELLINGS[row.flags[0]]
        if self._is(node, "seq", "a list of points") and isinstance(flag, Flag):
            points = [
                {"timeS" if snake_case(key) == "time_s" else key: value for key, value in point.items()}
                if isinstance(point, dict)
                else point
                for point in node.value()
            ]
            self._keep(flag, node, json.dumps(points))

    def _excluded(self, node: Node, _row: Special) -> None:
        """Accept what Penstock does: results exclude the warm-up, and nothing else."""
        if parse_bool(node.text) is None:
            self.errors.append(f"{node.name} must be true or false, not {_description(node)}.")

    def _slos(self, node: Node, row: Special) -> None:
        if self._is(node, "map", "a mapping of metrics to limits") and node.children:
            flag = SPELLINGS[row.flags[0]]
            if isinstance(flag, Flag) and all(child.is_scalar and self._is_usable(child) for child in node.children):
                text = " ".join(f"{snake_case(child.key)}:{child.text}" for child in node.children)
                self._read(flag, node, text)

    def _summary(self, node: Node, _row: Special) -> None:
        if node.off:
            self.errors.append(f"{node.name} cannot be turned off: Penstock always writes the summary.")

    def _records(self, node: Node, row: Special) -> None:
        self._flag(row.flags[0], Node(node.key, node.path, node.where, "str"), "summary" if node.off else "records")

    def _raw(self, node: Node, row: Special) -> None:
        if not node.off:
            self._flag(row.flags[0], node, "raw")

    # sweep

    def _parameters(self, node: Node, _row: Special) -> None:
        if not self._is(node, "map", "a mapping of keys to lists of values"):
            return
        for child in node.children:
            flag = self._swept_flag(child)
            if flag is None or not self._is(child, "seq", "a list of values"):
                continue
            self.values.pop(str(flag.target), None)
            self.spellings.pop(str(flag.target), None)
            self._sequence(flag, child)

    def _swept_flag(self, node: Node) -> Flag | None:
        """Return the flag of a dotted key path of the benchmark, such as `phases.profiling.rate`, or of a phase."""
        names = [snake_case(name) for name in node.key.removeprefix("benchmark.").split(".")]
        if names[0] == "datasets" and len(names) > 2:  # the name of the dataset follows
            names = ["dataset", *names[2:]]
        elif names[0] == "phases" and len(names) > 2:
            names = ["warmup" if names[1] == "warmup" else "profiling", *names[2:]]
        elif len(names) == 1:
            names = ["profiling", *names]
        row: Row | None = BENCHMARK
        for number, name in enumerate(names):
            if isinstance(row, Alias):
                row = row.row
            if isinstance(row, Distribution) and number == len(names) - 1:
                row = {"mean": row.mean, "stddev": row.stddev}.get(name)
            elif isinstance(row, Mapping):
                row = row.get(name)
            else:
                row = None
        flags = flags_of(row) if row is not None else ()
        by_user = self._profiling_type == "user_centric" and names == ["profiling", "rate"]
        flag = SPELLINGS[flags[-1 if by_user else 0]] if flags else None
        if isinstance(flag, UnsupportedFlag):
            self._refuse(node)
        elif flag is None or not flag.sweepable:
            self.errors.append(
                f"{node.name} is not a key of a number that can be swept, such as phases.profiling.rate."
            )
        else:
            return flag
        return None


def _is_warmup(phase: Node) -> bool:
    texts = {snake_case(child.key): child.text for child in phase.children}
    if "kind" in texts:
        return texts["kind"] == "warmup"
    return texts.get("name") == "warmup" or bool(parse_bool(texts.get("exclude_from_results", "")))


def _flag_text(flag: Flag, node: Node) -> str:
    """Return the text of a scalar as the flag takes it: without a unit of time, and without the .0 of a whole number."""
    text = node.text.strip()
    if flag.metavar in _PER_SECOND and (match := _DURATION.match(text)):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        return f"{seconds * _PER_SECOND[flag.metavar]:.12g}"
    if flag.kind == "int" and node.kind in ("float", "str"):
        return re.sub(r"\A([+-]?[0-9]+)\.0*\Z", r"\1", text)
    if flag.kind in ("int", "float") and node.kind == "int":
        return str(node.value())  # also of 0x10
    return node.text


def _description(node: Node) -> str:
    if node.is_scalar:
        return f"the value of {node.variables}" if node.variables else repr(node.text)
    return "a list" if node.kind == "seq" else "a mapping"


def _without_value(message: str, text: str, node: Node) -> str:
    """Remove a value that comes from the environment, and may be secret, from an error message."""
    return message.replace(repr(text), f"the value of {node.variables}") if node.variables else message
