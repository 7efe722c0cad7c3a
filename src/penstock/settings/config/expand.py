"""Writes settings as a configuration file, without credentials. What it writes can be read again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

import msgspec

from penstock.secrets import REDACTED, Secret, redact_fields, redact_url
from penstock.settings.config.keys import (
    FILE_DATASET,
    KEYS,
    PUBLIC_DATASET,
    SYNTHETIC_DATASET,
    Distribution,
    Inverted,
    Row,
    Section,
    Special,
    find_flag,
    flags_of,
    rows,
    target_of,
)
from penstock.settings.config.reader import camel_case
from penstock.settings.flags import Flag
from penstock.settings.input_config import distribution_config, length_shape, model_config
from penstock.settings.recipes import MADE_BY_RECIPE
from penstock.settings.schema import NumberDistribution, Settings

_MISSING: Any = object()


def expanded(
    settings: Settings,
    sweep: Mapping[str, tuple[Any, ...]] | None = None,
    scenarios: Mapping[str, Settings] | None = None,
) -> str:
    """Return the YAML of the settings: the values that differ from the defaults, and the defaults as comments.

    `sweep` has the values of a sweep by their targets, and `scenarios` the settings of points that differ in other things, by
    their names. `settings` are those of one of the points."""
    import yaml

    sweep = sweep or {}
    writer = _Writer(settings, set(sweep))
    document = {"schemaVersion": "2.0", **writer.section(KEYS, "")}
    if scenarios:
        folders = {each.output.folder for each in scenarios.values()}
        left_out = {*sweep, *(["output.folder"] if len(folders) > 1 else [])}
        bodies = [_Writer(each, left_out).section(KEYS, "")["benchmark"] for each in scenarios.values()]
        document["benchmark"] = shared = reduce(_common, bodies)
        runs = [
            {"name": name, "benchmark": _without(body, shared)} for name, body in zip(scenarios, bodies, strict=True)
        ]
        document["sweep"] = {**document.get("sweep", {}), "type": "scenarios", "runs": runs}
    if sweep:
        parameters = {key_of(target): list(values) for target, values in sweep.items()}
        document["sweep"] = {**document.get("sweep", {}), "parameters": parameters}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return text + "".join(["# Defaults:\n", *(f"#   {path}: {_scalar(value)}\n" for path, value in writer.defaults)])


def _common(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what two mappings have in common. A distribution is common as a whole only."""
    common = {}
    for key in one.keys() & other.keys():
        whole = {"mean", "peaks"} & {*(one[key] if isinstance(one[key], dict) else ())}
        if one[key] == other[key]:
            common[key] = one[key]
        elif isinstance(one[key], dict) and isinstance(other[key], dict) and not whole:
            common[key] = _common(one[key], other[key])
    return {key: common[key] for key in one if common.get(key) not in (None, {})}


def _without(mapping: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    rest = {}
    for key, value in mapping.items():
        if value != shared.get(key):
            nested = isinstance(value, dict) and isinstance(shared.get(key), dict)
            rest[key] = _without(value, shared[key]) if nested else value
    return rest


def key_of(target: str) -> str:
    """Return the path of the key for a target of `Settings`, as the parameters of a sweep name it."""
    for path, row in rows():
        for spelling in flags_of(row):
            flag = find_flag(spelling)
            if isinstance(flag, Flag) and flag.target == target and not path.startswith("benchmark.warmup."):
                tail = ".stddev" if isinstance(row, Distribution) and spelling == row.stddev else ""
                return camel_case(path.removeprefix("benchmark.")) + tail
    return target


class _Writer:
    def __init__(self, settings: Settings, left_out: set[str]) -> None:
        self._settings = settings
        experiment = settings.experiment
        chooses = experiment.find_max is not None or experiment.recipe is not None
        self._left_out = left_out | {
            *MADE_BY_RECIPE.get(experiment.recipe or "", ()),
            *(["load.concurrency"] if chooses else []),
        }
        self.defaults: list[tuple[str, Any]] = []

    def section(self, keys: Section, path: str) -> dict[str, Any]:
        written = {}
        for key, row in keys.items():
            if key == "dataset":
                row = self._dataset_keys if isinstance(row, Mapping) else row  # noqa: PLW2901
            value = self._value(row, f"{path}{key}")
            if value is not _MISSING:
                written[camel_case(key)] = value
        return written

    @property
    def _dataset_keys(self) -> Section:
        if self._settings.input.public is not None:
            return PUBLIC_DATASET
        return SYNTHETIC_DATASET if self._settings.input.file is None else FILE_DATASET

    def _value(self, row: Row, path: str) -> Any:
        match row:
            case str():
                return self._flag(row, path)
            case Inverted(flag):
                return self._flag(flag, path, inverted=True)
            case Distribution(mean, stddev) if (shape := self._shape(mean)) is not None:
                return distribution_config(shape)
            case Distribution(mean, stddev):
                parts = {"mean": self._flag(mean, f"{path}.mean"), "stddev": self._flag(stddev, f"{path}.stddev")}
                return {key: value for key, value in parts.items() if value is not _MISSING} or _MISSING
            case Special(form):
                write = getattr(self, f"write_{form}", None)
                return _MISSING if write is None else write(row, path)
            case Mapping():
                written = self.section(row, f"{path}.")
                return written.get("", written) or _MISSING
        return _MISSING

    def _flag(self, spelling: str, path: str, *, inverted: bool = False) -> Any:
        """Return the value of a flag as the file would have it; `_MISSING` for a default, which is noted."""
        flag = find_flag(spelling)
        if not isinstance(flag, Flag) or flag.target is None or flag.target in self._left_out:
            return _MISSING
        value, default = _lookup(self._settings, flag.target)
        if value is _MISSING:
            return _MISSING
        if value is None or value in ("", (), {}):
            self.defaults.append((camel_case(path.removesuffix(".")), "not set"))
            return _MISSING
        if flag.target == "endpoint.api_key" and self._key_is_elsewhere():
            return _MISSING
        if flag.target == "input.system" and self._settings.input.system_file:
            return _MISSING
        shown = self._length_shapes.get(flag.target) or _plain(value, flag)
        if inverted:
            shown = not shown
        if value == default:
            self.defaults.append((camel_case(path), shown))
            return _MISSING
        return shown

    @property
    def _length_shapes(self) -> dict[str, str]:
        """Distributions of lengths, by target, as their flags take them."""
        shape = length_shape(self._settings.input)
        texts = {
            "input.length_pairs": shape.get("sequence_distribution"),
            "input.range_ratio": shape.get("random_range_ratio"),
        }
        return {target: text for target, text in texts.items() if text is not None}

    def _shape(self, spelling: str) -> NumberDistribution | None:
        flag = find_flag(spelling)
        if not isinstance(flag, Flag) or flag.target in self._left_out:
            return None
        return self._settings.input.distribution(str(flag.target).removeprefix("input."))

    def _key_is_elsewhere(self) -> bool:
        endpoint = self._settings.endpoint
        return bool(endpoint.api_key_env or endpoint.api_key_file or endpoint.default_api_key)

    # special forms of the table

    def write_models(self, _row: Special, _path: str) -> Any:
        settings = self._settings
        if settings.model_selection == "round_robin":
            return list(settings.models)
        return model_config(settings)

    def write_dataset_type(self, _row: Special, _path: str) -> str:
        if self._settings.input.public is not None:
            return "public"
        return "synthetic" if self._settings.input.file is None else "file"

    def write_phase_type(self, _row: Special, _path: str) -> str:
        load = self._settings.load
        if load.recorded is not None:
            return "fixed_schedule"
        if getattr(load, "users", None) is not None:
            return "user_centric"
        return "concurrency" if load.arrival_rate is None else load.arrivals

    def write_length_pairs(self, row: Special, path: str) -> Any:
        return self._flag(row.flags[0], path)

    def write_warmup_rate(self, row: Special, path: str) -> Any:
        by_request, by_user = row.flags
        return self._flag(by_request if self._settings.warmup.user_rate is None else by_user, path)

    def write_user_files(self, _row: Special, _path: str) -> Any:
        files = self._settings.output.user_files
        return [msgspec.to_builtins(file) for file in files] or _MISSING

    def write_variables(self, _row: Special, _path: str) -> Any:
        return self._settings.output.variables or _MISSING

    def write_warmup_type(self, row: Special, path: str) -> Any:
        if self._settings.warmup.user_rate is not None:
            return "user_centric"
        pattern = self._flag(row.flags[0], path)
        return "concurrency" if pattern == "concurrency_burst" else pattern

    def write_rate(self, row: Special, path: str) -> Any:
        by_request, by_user = row.flags
        return self._flag(by_user if self.write_phase_type(row, path) == "user_centric" else by_request, path)

    def write_ramp(self, row: Special, path: str) -> Any:
        return self._flag(row.flags[0], path)

    def write_rate_series(self, _row: Special, _path: str) -> Any:
        points = [{"timeS": time_s, "qps": rate} for time_s, rate in self._settings.load.rate_series]
        return {"points": points} if points else _MISSING

    def write_slos(self, _row: Special, _path: str) -> Any:
        if "goodput" in self._left_out:
            return _MISSING
        pairs = [pair.partition(":") for pair in self._settings.goodput.replace(",", " ").split()]
        return {tag: _number(limit) for tag, _, limit in pairs} or _MISSING

    def write_enabled(self, row: Special, _path: str) -> Any:
        flag = find_flag(row.flags[0])
        target = flag.target if isinstance(flag, Flag) else None
        on = target is not None and _lookup(self._settings, target)[0] not in (None, _MISSING)
        off = [_lookup(self._settings, target_of(name))[0] for name in row.flags[1:]]
        return True if on else False if True in off else _MISSING

    def write_pairs(self, row: Special, _path: str) -> Any:
        flag = find_flag(row.flags[0])
        target = flag.target if isinstance(flag, Flag) else None
        return (dict(_lookup(self._settings, target)[0]) if target is not None else None) or _MISSING

    def write_records(self, _row: Special, _path: str) -> Any:
        return ["jsonl"] if self._settings.output.export_level != "summary" else False

    def write_raw(self, _row: Special, _path: str) -> Any:
        return True if self._settings.output.keeps_replies else _MISSING


def _lookup(settings: Settings, target: str) -> tuple[Any, Any]:
    """Return the value of a target and its default; `_MISSING` for a target that is no setting."""
    value: Any = settings
    default: Any = _MISSING
    for name in target.split("."):
        field = {field.name: field for field in msgspec.structs.fields(value)}.get(name)
        if field is None:
            return _MISSING, _MISSING
        default = field.default
        value = getattr(value, name)
    return value, default


def _plain(value: Any, flag: Flag) -> Any:
    """Return a value as YAML can hold it, without credentials."""
    if flag.kind == "bool":
        return value is flag.stored_value
    if flag.kind == "headers":
        return {name: REDACTED for name, _ in value}
    if flag.kind == "extra":
        return redact_fields(value)
    if isinstance(value, Secret):
        return redact_url(value.reveal()) if flag.url else REDACTED
    if flag.target == "input.audio.rates":
        return [rate / 1000 for rate in value]  # the file has kHz
    if isinstance(value, tuple):
        return [redact_url(item) if flag.url else item for item in value]
    if isinstance(value, float):
        return "inf" if math.isinf(value) else int(value) if value.is_integer() else value
    return redact_url(value) if flag.url else value


def _number(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
