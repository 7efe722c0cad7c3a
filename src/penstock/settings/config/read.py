"""Reads a configuration file and combines it with the flags, which override it.

The keys whose values have a form of their own are here; `reader` has all the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from penstock.settings.api_key import KEY_FIELDS
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
    Refused,
    Row,
    Special,
    find_flag,
    flags_of,
)
from penstock.settings.config.reader import Reader, describe
from penstock.settings.flag_values import ParsedArguments, parse_bool
from penstock.settings.flags import Flag, UnsupportedFlag
from penstock.settings.schema import RAW

_ALTERNATIVES = (
    {f"endpoint.{field}" for field in KEY_FIELDS},
    {"load.rate", "load.conversation_rate", "load.rate_series", "load.user_rate"},
)
"""Targets that exclude each other: a flag for one of them replaces the others in the file."""
_PAIRS = ("endpoint.headers", "endpoint.extra")
_CLOSED_LOOP = "concurrency_burst"
"""The arrival pattern of a warmup without a rate."""
_TEMPLATE_FIELDS = {"body": "payload_template", "response_field": "response_field"}


def overlay(parsed: ParsedArguments) -> ParsedArguments:
    """Return the values of the file that `config_file` names, overridden by the other values of `parsed`."""
    flags = dict(parsed.values)
    file = read_config(flags["config_file"], os.environ)
    replaced = {other for target in flags for group in _ALTERNATIVES if target in group for other in group}
    values = {target: value for target, value in file.values.items() if target not in replaced}
    for target in _PAIRS:
        if target in flags and target in values:
            flags[target] = _merged(values[target], flags[target])
    return parsed._replace(values=values | flags, spellings=file.spellings | parsed.spellings)


def _merged(pairs: list[tuple[str, Any]], overriding: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the pairs of both. Header names are case-insensitive; names of body fields differ in more than case."""
    names = {name.lower() for name, _ in overriding}
    return [pair for pair in pairs if pair[0].lower() not in names] + overriding


def read_config(path: str, environment: Mapping[str, str]) -> ParsedArguments:
    """Return the values of a file by the targets of their flags, or raise `UserError` with every error of the file.

    The spelling of a value is its file, line and key, so that all checks of the flags name them."""
    root = read_document(path, environment)
    reader = ConfigReader()
    reader.section(root, KEYS)
    reader.check_dataset()
    if reader.errors:
        raise ConfigError(path, [sentence for _, sentence in sorted(reader.errors)])
    return ParsedArguments(reader.values, reader.spellings)


class ConfigReader(Reader):
    """Reads the special forms of the table of keys."""

    def __init__(self) -> None:
        super().__init__()
        self._profiling_type = ""
        self._public_type: Node | None = None
        """The key that says that the dataset is a public one."""

    def read_schema_version(self, node: Node, _row: Special) -> None:
        if node.text not in ("2.0", "2"):
            self._error(node, f'must be "2.0", not {describe(node)}.')

    def read_ignored(self, node: Node, _row: Special) -> None:
        """Accept a key that has no meaning for Penstock, and ignore it."""

    def read_enabled(self, node: Node, row: Special) -> None:
        """Turn on what a flag without a value turns on, or remove what the other keys of the section have set."""
        flag = find_flag(row.flags[0])
        value = parse_bool(node.text) if node.is_scalar else None
        if value is None:
            self._error(node, f"must be true or false, not {describe(node)}.")
        elif isinstance(flag, UnsupportedFlag) or flag.target is None:
            if value:
                self._refuse(node)
        elif value:
            self.values.setdefault(flag.target, [])
            self.spellings.setdefault(flag.target, node.name)
        else:
            self.values.pop(flag.target, None)

    def read_models(self, node: Node, row: Special) -> None:
        names, strategy, weights = row.flags
        if node.kind == "map":
            self.section(node, {"strategy": strategy, "items": Special("model_items", (names, weights))})
        else:
            self._flag(names, node)

    def read_model_items(self, node: Node, row: Special) -> None:
        if not self._is(node, "seq", "a list of models"):
            return
        others = dict.fromkeys(("lora", "modalities", "tokenizer"), Refused())
        for item in node.children:
            if not item.is_scalar:
                self.section(item, {"name": Special("ignored"), "weight": Special("ignored"), **others})
        fields = [child for item in node.children for child in (item.children or (item,))]
        for flag, keys in zip(row.flags, (("", "name"), ("weight",)), strict=True):
            if found := tuple([field for field in fields if field.key in keys]):
                self._flag(flag, Node("", node.path, node.file, node.line, "seq", children=found))

    def read_template(self, node: Node, row: Special) -> None:
        flag = find_flag(row.flags[0])
        self.section(node, dict.fromkeys(_TEMPLATE_FIELDS, Special("ignored")))
        for child in node.children:
            name = _TEMPLATE_FIELDS.get(snake_case(child.key))
            if name is not None and isinstance(flag, Flag):
                self._add_pairs(flag, node, [(name, child.text)])

    # datasets

    def read_datasets(self, node: Node, _row: Special) -> None:
        if not self._is(node, "seq", "a list of datasets"):
            return
        for dataset in node.children[:1]:
            self.section(dataset, DATASET)
        for dataset in node.children[1:]:
            self._error(dataset, "is a second dataset; this version of Penstock sends one.")

    def read_dataset_type(self, node: Node, row: Special) -> None:
        del row
        if self._choice(node, ("synthetic", "file", "public")) == "public":
            self._public_type = node

    def check_dataset(self) -> None:
        """Add an error if the type of the dataset is public, but it is not named."""
        if self._public_type is not None and "input.public" not in self.values and not self.errors:
            self._error(self._public_type, "public needs the key 'dataset' with the name of a dataset.")

    # phases

    def read_phases(self, node: Node, _row: Special) -> None:
        """Read one phase, or a list of them: the profiling phase first, because the warmup can refer to it."""
        phases = node.children if node.kind == "seq" else (node,)
        warmups = [phase for phase in phases if _is_warmup(phase)]
        others = [phase for phase in phases if phase not in warmups]
        for phase in others[:1]:
            self.section(phase, PROFILING)
        for phase in warmups[:1]:
            self.section(phase, WARMUP)
        for phase in (*others[1:], *warmups[1:]):
            kind = "warmup" if phase in warmups else "profiling"
            self._error(phase, f"is a second {kind} phase; this version of Penstock runs one of each.")

    def read_phase_kind(self, node: Node, _row: Special) -> None:
        self._choice(node, ("warmup", "profiling"))

    def read_excluded(self, node: Node, _row: Special) -> None:
        if parse_bool(node.text) is not True:
            self._error(node, f"must be true, not {describe(node)}: the results exclude the warmup.")

    def read_included(self, node: Node, _row: Special) -> None:
        if parse_bool(node.text) is not False:
            self._error(node, f"must be false, not {describe(node)}: the results are those of this phase.")

    def read_phase_type(self, node: Node, row: Special) -> None:
        pattern, schedule, no_schedule = row.flags
        self._profiling_type = kind = self._choice(node, PHASE_TYPES)
        if kind in ("poisson", "gamma", "constant"):
            self._flag(pattern, node, kind)
        if kind:
            self._flag(schedule if kind == "fixed_schedule" else no_schedule, node, "true")

    def read_warmup_type(self, node: Node, row: Special) -> None:
        kind = self._choice(node, PHASE_TYPES)
        if kind in ("user_centric", "fixed_schedule"):
            self._error(node, f"must be concurrency, poisson, gamma or constant in a warmup, not {kind}.")
        elif kind and kind != (self._profiling_type or "concurrency"):
            self._flag(row.flags[0], node, _CLOSED_LOOP if kind == "concurrency" else kind)

    def read_rate(self, node: Node, row: Special) -> None:
        by_request, by_user = row.flags
        if self._profiling_type in ("concurrency", "fixed_schedule"):
            choices = "poisson, gamma, constant or user_centric"
            self._error(node, f"does not fit the type {self._profiling_type}; choose {choices}.")
        else:
            self._flag(by_user if self._profiling_type == "user_centric" else by_request, node)

    def read_ramp(self, node: Node, row: Special) -> None:
        if node.kind == "map":
            self.section(node, {"duration": row.flags[0], "strategy": Special("ramp_strategy")})
        else:
            self._flag(row.flags[0], node)

    def read_ramp_strategy(self, node: Node, _row: Special) -> None:
        self._choice(node, ("linear",))

    def read_rate_series(self, node: Node, row: Special) -> None:
        self.section(node, {"path": row.flags[0], "points": Special("rate_points", row.flags)})

    def read_rate_points(self, node: Node, row: Special) -> None:
        flag = find_flag(row.flags[0])
        if not self._is(node, "seq", "a list of points") or not isinstance(flag, Flag):
            return
        wrong = [point for point in node.children if not self._is(point, "map", "a mapping with timeS and qps")]
        if not wrong:
            names = {"time_s": "timeS", "qps": "qps"}
            points = [
                {names.get(snake_case(child.key), child.key): child.value() for child in point.children}
                for point in node.children
            ]
            self._keep(flag, node, json.dumps(points))

    # results

    def read_slos(self, node: Node, row: Special) -> None:
        if self._is(node, "map", "a mapping of metrics to limits") and self._all_scalars(node, "a number"):
            text = " ".join(f"{snake_case(child.key)}:{child.text}" for child in node.children)
            if text and self._all_usable(node):
                self._flag(row.flags[0], node, text)

    def read_stream_metrics(self, node: Node, _row: Special) -> None:
        if node.off:
            self._error(node, "cannot be turned off: the metrics are what metricsUrl receives; remove that instead.")

    def read_pairs(self, node: Node, row: Special) -> None:
        flag = find_flag(row.flags[0])
        if node.kind != "map":
            self._flag(row.flags[0], node)
        elif isinstance(flag, Flag) and self._all_scalars(node, "a text") and self._all_usable(node):
            self._keep(flag, node, [json.dumps({child.key: child.text for child in node.children})])

    def read_summary(self, node: Node, _row: Special) -> None:
        if node.off:
            self._error(node, "cannot be turned off: Penstock always writes the summary.")

    def read_records(self, node: Node, row: Special) -> None:
        if self.values.get("output.export_level") == RAW:
            return  # raw replies come with the records, whichever key is the first in the file
        level = "summary" if node.off else "records"
        self._flag(row.flags[0], Node(node.key, node.path, node.file, node.line, "str"), level)

    def read_raw(self, node: Node, row: Special) -> None:
        if not node.off:
            self._flag(row.flags[0], Node(node.key, node.path, node.file, node.line, "str"), RAW)

    # sweep

    def read_parameters(self, node: Node, _row: Special) -> None:
        if not self._is(node, "map", "a mapping of keys to lists of values"):
            return
        for child in node.children:
            flag = self._swept_flag(child)
            if flag is not None and self._is(child, "seq", "a list of values"):
                self.values.pop(str(flag.target), None)
                self.spellings.pop(str(flag.target), None)
                self._sequence(flag, child)

    def _swept_flag(self, node: Node) -> Flag | None:
        """Return the flag of a parameter, or None after an error."""
        names = _swept_path(node.key)
        flags = flags_of(_find(names))
        by_user = names == ["profiling", "rate"] and self._profiling_type == "user_centric"
        flag = find_flag(flags[-1 if by_user else 0]) if flags else None
        if isinstance(flag, UnsupportedFlag):
            self._refuse(node)
            return None
        if flag is None or not flag.sweepable:
            self._error(node, "is not a key of a number that can be swept, such as phases.profiling.rate.")
            return None
        return flag


def _swept_path(key: str) -> list[str]:
    """Return the path in the benchmark of a key such as `phases.profiling.rate`, `datasets.main.isl` or `rate`."""
    names = [snake_case(name) for name in key.removeprefix("benchmark.").split(".")]
    if names[0] == "datasets":  # the name of the dataset follows
        return ["dataset", *names[2:]]
    if names[0] == "phases":
        return ["warmup" if names[1:2] == ["warmup"] else "profiling", *names[2:]]
    return names if names[1:] else ["profiling", *names]


def _find(names: list[str]) -> Row:
    """Return the row of a key path of the benchmark; an empty section if there is none."""
    row: Row = BENCHMARK
    for name in names:
        if isinstance(row, Alias):
            row = row.row
        if isinstance(row, Distribution):
            row = row._asdict()
        row = row.get(name, {}) if isinstance(row, Mapping) else {}
    return row


def _is_warmup(phase: Node) -> bool:
    texts = {snake_case(child.key): child.text for child in phase.children}
    if "kind" in texts:
        return texts["kind"] == "warmup"
    return texts.get("name") == "warmup" or bool(parse_bool(texts.get("exclude_from_results", "")))
