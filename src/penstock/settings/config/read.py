"""Reads a configuration file and combines it with the flags, which override it.

The keys whose values have a form of their own are here; `reader` has all the others.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import UserError
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
    target_of,
)
from penstock.settings.config.reader import Reader, describe, distribution_target, unknown_key
from penstock.settings.config.special_files import read_user_file, store_records
from penstock.settings.config.templates import Templates
from penstock.settings.flag_values import ParsedArguments, Variant, parse_bool
from penstock.settings.flags import Flag, UnsupportedFlag
from penstock.settings.schema import RAW, Parameter

_ALTERNATIVES = (
    {f"endpoint.{field}" for field in KEY_FIELDS},
    {"load.rate", "load.conversation_rate", "load.rate_series", "load.user_rate"},
)
"""Targets that exclude each other: a flag for one of them replaces the others in the file."""
_PAIRS = ("endpoint.headers", "endpoint.extra")
_CLOSED_LOOP = "concurrency_burst"
"""The arrival pattern of a warmup without a rate."""
_TEMPLATE_FIELDS = {"body": "payload_template", "response_field": "response_field"}
_IDLE_RAMPS = (
    ("load.concurrency_ramp_s", ("load.concurrency",)),
    ("load.prefill_ramp_s", ("load.prefill_concurrency",)),
    ("warmup.concurrency_ramp_s", ("warmup.concurrency", "load.concurrency")),
    ("warmup.prefill_ramp_s", ("warmup.prefill_concurrency", "load.prefill_concurrency")),
)
"""Ramps of a file, and the values that they lead to, without which they have no effect, as in AIPerf."""
_TURN_DELAYS = (
    *("input.conversation.delay_mean_ms", "input.conversation.delay_stddev_ms"),
    "input.distributions.conversation.delay_mean_ms",
)
_RATES = {
    *("load.rate", "load.conversation_rate", "load.rate_series", "load.user_rate", "load.users"),
    *("load.arrivals", "load.smoothness", "load.rate_ramp_s", "load.schedule.on"),
}
"""Targets that a phase of the type `concurrency` does not have."""
_VARYING = ("input.", "load.", "warmup.", "goodput", "until", "reader_rate", "output.variables", "output.user_files")
"""Beginnings of the targets that can differ between the points of a sweep."""
_SAFE_NAME = re.compile(r"(?!\.+\Z)[^/\\\x00-\x1f]+\Z")
_SCENARIO_KEYS = ("name", "variables", "benchmark", "values")
_PLOT_KEYS = ("visualization", "settings", "experiment_classification")


def overlay(parsed: ParsedArguments) -> ParsedArguments:
    """Return the values of the file that `config_file` names, overridden by the other values of `parsed`."""
    flags = dict(parsed.values)
    file = read_config(flags["config_file"], os.environ)
    spellings = file.spellings | parsed.spellings
    for target in flags.keys() - set(_PAIRS):
        for variant in file.variants:
            if file.values.get(target) != variant.values.get(target):
                name = variant.spellings.get(target) or file.spellings[target]
                raise UserError(f"{parsed.spellings[target]} sets what the sweep of {name} varies; leave it out.")
    values = _overridden(file.values, flags)
    notes = [*file.notes, *_remove_idle_keys(values, spellings)]
    variants = []
    for variant in file.variants:
        overridden = _overridden(variant.values, flags)
        _remove_idle_keys(overridden, spellings)
        variants.append(Variant(variant.parameters, overridden, variant.spellings | parsed.spellings))
    return parsed._replace(values=values, spellings=spellings, variants=tuple(variants), notes=tuple(notes))


def _overridden(
    values: Mapping[str, Any], new: Mapping[str, Any], dropped: set[str] | frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return values with those of flags, or of another part of the file, in place of those that they replace."""
    replaced = {other for target in new for group in _ALTERNATIVES if target in group for other in group} | dropped
    replaced |= {f"input.distributions.{target.replace('_stddev', '_mean')[6:]}" for target in new}
    kept = {target: value for target, value in values.items() if target not in replaced or target in new}
    merged = {target: _merged(kept[target], new[target]) for target in _PAIRS if target in kept and target in new}
    return {**kept, **new, **merged}


def _merged(pairs: list[tuple[str, Any]], overriding: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the pairs of both. Header names are case-insensitive; names of body fields differ in more than case."""
    names = {name.lower() for name, _ in overriding}
    return [pair for pair in pairs if pair[0].lower() not in names] + overriding


def _remove_idle_keys(values: dict[str, Any], spellings: Mapping[str, str]) -> list[str]:
    """Remove what the file sets without an effect, and return a sentence for each."""
    ramps = [ramp for ramp, ends in _IDLE_RAMPS if not any(end in values for end in ends)]
    reasons = dict.fromkeys(ramps, "the concurrency that it would lead to is not set")
    if "load.user_rate" in values:
        reasons |= dict.fromkeys(_TURN_DELAYS, "users send in a fixed interval")
    idle = [target for target in reasons if target in values and not spellings[target].startswith("-")]
    for target in idle:
        del values[target]
    return [f"{spellings[target]} has no effect: {reasons[target]}." for target in idle]


def read_config(path: str, environment: Mapping[str, str]) -> ParsedArguments:
    """Return the values of a file by the targets of their flags, or raise `UserError` with every error of the file.

    The spelling of a value is its file, line and key, so that all checks of the flags name them."""
    root = read_document(path, environment)
    reader = _read(root, {})
    variants = _variants(root, reader)
    first = variants[0] if variants else reader
    return ParsedArguments(first.values, first.spellings, variants=tuple(variants), notes=tuple(reader.notes))


def _read(root: Node, swept: Mapping[tuple[str, ...], Any]) -> ConfigReader:
    """Read the file with other values for some paths, which templates may use."""
    reader = ConfigReader(Templates(root, swept))
    reader.section(reader.templates.root(), KEYS)
    reader.check()
    reader.raise_errors(root.file)
    return reader


class _Swept(NamedTuple):
    """A key of a sweep with its values."""

    name: str
    path: tuple[str, ...]
    """From the root of the file."""
    row: Row | None
    """None for a variable."""
    values: tuple[Node, ...]


def _variants(root: Node, reader: ConfigReader) -> list[Variant]:
    """Return the points of a sweep that is more than lists of numbers for flags."""
    found = [_scenario(root, reader, number) for number in range(len(reader.scenarios))]
    if reader.swept:
        lists = [[(swept, value) for value in swept.values] for swept in reader.swept]
        zipped = reader.values.get("experiment.combine") == "zip"
        if zipped and len(set(map(len, lists))) > 1:
            raise UserError(f"{root.file}: a sweep of the type zip needs lists of the same length.")
        rows: Sequence[Sequence[tuple[_Swept, Node]]] = list(
            zip(*lists, strict=True) if zipped else itertools.product(*lists)
        )
        found = [_variant(root, reader, row) for row in rows]
    for number, variant in enumerate(found):
        if variant.parameters.keys() != found[0].parameters.keys():
            raise UserError(
                f"{root.file}: all runs of a sweep need the same values; name each of {', '.join(found[0].parameters)}."
            )
        if fixed := _fixed_target(found[0].values, variant.values):
            name = variant.spellings.get(fixed) or found[0].spellings[fixed]
            raise UserError(
                f"{name} cannot differ between the points of a sweep, which share servers; make a run for each."
            )
        if variant.parameters in [each.parameters for each in found[:number]]:
            named = " and ".join(f"{name} {value}" for name, value in variant.parameters.items())
            raise UserError(f"{root.file}: the sweep has {named} twice; its points must differ.")
    return found


def _fixed_target(values: Mapping[str, Any], others: Mapping[str, Any]) -> str | None:
    """Return a target whose values differ, but are the same for all points of an experiment."""
    differing = [target for target in values.keys() | others.keys() if values.get(target) != others.get(target)]
    return next((target for target in sorted(differing) if not target.startswith(_VARYING)), None)


def _scenario(root: Node, reader: ConfigReader, number: int) -> Variant:
    fields = {snake_case(child.key): child for child in reader.scenarios[number].children}
    variables: dict[tuple[str, ...], Any] = (
        {("variables", child.key): child.value() for child in fields["variables"].children}
        if "variables" in fields
        else {}
    )
    base = reader if not variables else _read(root, variables)
    part = base.part()
    if "benchmark" in fields:
        part.section(base.templates.render(fields["benchmark"]), BENCHMARK)
    parameters: dict[str, Parameter] = {"scenario": fields["name"].text if "name" in fields else f"scenario_{number}"}
    if "values" in fields:
        parameters = {child.key: _parameter(child) for child in fields["values"].children}
    return base.variant(parameters, part)


def _variant(root: Node, reader: ConfigReader, row: Sequence[tuple[_Swept, Node]]) -> Variant:
    """Return the point of a sweep with these values."""
    used = {swept.path: value.value() for swept, value in row} if reader.templates.used else {}
    base = _read(root, used) if used else reader
    part = base.part()
    for swept, value in row:
        if swept.row is not None:
            part.take(swept.row, value)
    return base.variant({swept.name: _parameter(value) for swept, value in row}, part)


def _parameter(node: Node) -> Parameter:
    value = node.value()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return json.dumps(value, separators=(",", ":"))
    return value


class ConfigReader(Reader):
    """Reads the special forms of the table of keys."""

    def __init__(self, templates: Templates) -> None:
        super().__init__()
        self.templates = templates
        self.notes: list[str] = []
        self.scenarios: tuple[Node, ...] = ()
        """The entries of `sweep.runs`."""
        self.swept: list[_Swept] = []
        """Keys of a sweep other than lists of numbers for flags."""
        self._profiling_type = ""
        self._warmup_type: Node | None = None
        self._public_type: Node | None = None
        """The key that says that the dataset is a public one."""

    def part(self) -> ConfigReader:
        """Return a reader for values that replace those of this one."""
        reader = ConfigReader(self.templates)
        reader._profiling_type = self._profiling_type
        return reader

    def variant(self, parameters: dict[str, Parameter], part: ConfigReader) -> Variant:
        """Return the values with those of a part in their place."""
        part.raise_errors(self.templates.file)
        values = _overridden(self.values, part.values, part.dropped)
        return Variant(parameters, values, self.spellings | part.spellings)

    def take(self, row: Row, node: Node) -> None:
        self._take(row, node)

    def raise_errors(self, file: str) -> None:
        if self.errors:
            raise ConfigError(file, [sentence for _, sentence in sorted(self.errors)])

    def read_schema_version(self, node: Node, _row: Special) -> None:
        if node.text not in ("2.0", "2"):
            self._error(node, f'must be "2.0", not {describe(node)}.')

    def read_ignored(self, node: Node, _row: Special) -> None:
        """Accept a key that has no meaning for Penstock, and ignore it."""

    def read_enabled(self, node: Node, row: Special) -> None:
        """Turn on what a flag without a value turns on, or remove what the other keys of the section have set and turn the
        default off."""
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
            for off in map(target_of, row.flags[1:]):
                self.values[off], self.spellings[off] = True, node.name

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

    def read_inline_records(self, node: Node, row: Special) -> None:
        flag = find_flag(row.flags[0])
        if self._is(node, "seq", "a list of records") and isinstance(flag, Flag):
            if not node.children:
                self._error(node, "needs at least one record.")
            elif all(self._is(child, "map", "a mapping, as a line of a file") for child in node.children):
                self._keep(flag, node, store_records(node.value(), node.name))

    def read_length_pairs(self, node: Node, row: Special) -> None:
        """Read a text as of the flag, or a list of mappings with `isl`, `osl` and `probability`."""
        if node.kind != "seq":
            self._flag(row.flags[0], node)
            return
        pairs = []
        for child in node.children:
            if not self._is(child, "map", "a mapping with isl, osl and probability"):
                return
            pair = {snake_case(field.key): field.value() for field in child.children}
            for name in ("isl", "osl"):
                if isinstance(pair.get(name), dict):
                    length = {snake_case(key): value for key, value in pair.pop(name).items()}
                    pair |= {
                        name: length.pop("mean", length.pop("value", None)),
                        f"{name}_stddev": length.pop("stddev", 0),
                    }
                    pair |= {f"{name}.{key}": value for key, value in length.items()}
            pairs.append({("prob" if key == "probability" else key): value for key, value in pair.items()})
        flag = find_flag(row.flags[0])
        if pairs and isinstance(flag, Flag) and self._all_usable(node):
            self._keep(flag, node, json.dumps({"pairs": pairs}))

    def check(self) -> None:
        """Add an error for what needs another key of the file."""
        kind = self._warmup_type
        if kind is not None and self._profiling_type != "user_centric" and "warmup.user_rate" not in self.values:
            self._error(kind, "user_centric needs a rate, which the users share.")
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
        if kind == "concurrency":
            self.dropped |= _RATES

    def read_warmup_type(self, node: Node, row: Special) -> None:
        kind = self._choice(node, PHASE_TYPES)
        if kind == "fixed_schedule":
            self._error(node, f"must be concurrency, poisson, gamma, constant or user_centric in a warmup, not {kind}.")
        elif kind == "user_centric":
            self._warmup_type = node
        elif kind and kind != (self._profiling_type or "concurrency"):
            self._flag(row.flags[0], node, _CLOSED_LOOP if kind == "concurrency" else kind)

    def read_warmup_rate(self, node: Node, row: Special) -> None:
        self._flag(row.flags[0 if self._warmup_type is None else 1], node)

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

    def read_user_files(self, node: Node, _row: Special) -> None:
        if not self._is(node, "seq", "a list of files"):
            return
        files = []
        for child in node.children:
            self.section(child, dict.fromkeys(("path", "format", "content"), Special("ignored")))
            try:
                files.append(read_user_file(child, self.templates.variables))
            except UserError as error:
                self._error(child, str(error))
        self.values |= {"output.user_files": tuple(files), "output.variables": self.templates.variables}

    def read_gpu_collector(self, node: Node, _row: Special) -> None:
        """Read the GPUs of this machine if the collector is local; URLs of exporters are those of `urls`."""
        if self._choice(node, ("dcgm", "pynvml", "amdsmi")) in ("pynvml", "amdsmi"):
            if self.values.get("telemetry.gpu"):
                self._error(
                    node, f"{node.text} reads the GPUs of this machine, and urls those of exporters; keep one of them."
                )
            self.values["telemetry.gpu"] = [node.text]
            self.spellings["telemetry.gpu"] = node.name

    def read_gpu_mode(self, node: Node, _row: Special) -> None:
        """Check how GPUs are to be shown: they are part of the report and of the dashboard."""
        self._choice(node, ("summary", "realtime_dashboard"))

    def read_plot(self, node: Node, _row: Special) -> None:
        if node.kind == "map":
            for child in node.children:
                if snake_case(child.key) not in _PLOT_KEYS:
                    self.errors.append((child.line, unknown_key(child, "plot", dict.fromkeys(_PLOT_KEYS, ""))))
        elif node.kind != "str":
            self._error(node, f"must be a mapping or the path of a file, not {describe(node)}.")
        self.notes.append(f"{node.name} has no effect: report.html and `penstock plot` draw charts of their own.")

    def read_variables(self, node: Node, _row: Special) -> None:
        """Check the variables, which the templates of the file have used."""
        self._is(node, "map", "a mapping of names to values")

    # sweep

    def read_sweep_type(self, node: Node, row: Special) -> None:
        kind = self._choice(node, ("grid", "zip", "scenarios", "sobol", "latin_hypercube", "adaptive_search"))
        if kind in ("grid", "zip"):
            self._flag(row.flags[0], node, kind)
        elif kind and kind != "scenarios":
            self._error(
                node, f"{kind} is not a sweep that Penstock has; use grid, zip or scenarios, or a search (findMax)."
            )

    def read_scenarios(self, node: Node, _row: Special) -> None:
        if not self._is(node, "seq", "a list of runs"):
            return
        for child in node.children:
            self.section(child, dict.fromkeys(_SCENARIO_KEYS, Special("ignored")))
            for field in child.children:
                if field.key == "name" and not _SAFE_NAME.match(field.text):
                    self._error(field, f"must be a name that a folder can have, not {describe(field)}.")
                elif field.key in _SCENARIO_KEYS[1:] and field.kind != "map":
                    self._error(field, f"must be a mapping, not {describe(field)}.")
        self.scenarios = node.children

    def read_parameters(self, node: Node, _row: Special) -> None:
        if not self._is(node, "map", "a mapping of keys to lists of values"):
            return
        for child in node.children:
            names = _swept_path(child.key)
            row = None if names[0] == "variables" else _find(names)
            if row is not None and (row == {} or isinstance(row, Refused)):
                self._error(child, "is not a key of the benchmark, such as phases.profiling.rate.")
            elif self._is(child, "seq", "a list of values") and child.children:
                self._sweep(child, names, row)

    def _sweep(self, node: Node, names: list[str], row: Row | None) -> None:
        """Keep a list of numbers for a flag as one, and other values for `_variants`."""
        flags = () if row is None else flags_of(row)
        by_user = names == ["profiling", "rate"] and self._profiling_type == "user_centric"
        flag = find_flag(flags[-1 if by_user else 0]) if flags else None
        if isinstance(flag, UnsupportedFlag):
            self._refuse(node)
            return
        row = row.row if isinstance(row, Alias) else row
        numbers = all(child.is_scalar for child in node.children)
        if flag is None or not flag.sweepable or not numbers or self.templates.used:
            keys = node.key.removeprefix("benchmark.").split(".")
            path = keys if row is None else ["benchmark", *([] if keys[1:] else ["phases", "profiling"]), *keys]
            name = flag.parameter if flag is not None and flag.sweepable else names[-1]
            self.swept.append(_Swept(name, tuple(path), row, node.children))
            return
        replaced = [flag.target]
        if isinstance(row, Distribution):
            replaced += [distribution_target(flag), str(flag.target).replace("_mean", "_stddev")]
        for target in replaced:
            self.values.pop(str(target), None)
            self.spellings.pop(str(target), None)
        self._sequence(flag, node)


def _swept_path(key: str) -> list[str]:
    """Return the path in the benchmark of a key such as `phases.profiling.rate`, `datasets.main.isl` or `rate`."""
    names = [snake_case(name) for name in key.removeprefix("benchmark.").split(".")]
    if names[0] == "variables":
        return ["variables", *key.split(".")[1:]]
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
