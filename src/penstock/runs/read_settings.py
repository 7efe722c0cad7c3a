"""Makes settings from the parsed flags and, for a trace, from its first row."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.resolve import resolve
from penstock.settings.schema import EndpointSettings, Settings
from penstock.settings.sweep import is_sweep
from penstock.suggest import did_you_mean


def read_settings(
    parsed: ParsedArguments,
    folder_prefix: str = "",
    *,
    parameters: tuple[str, ...] = (),
    endpoint: EndpointSettings | None = None,
) -> Settings:
    """Raise `UserError` for values that are missing or contradict each other.

    `parameters` are the names of those that vary in a sweep, whose points share the settings of the `endpoint`."""
    parsed = _with_public_dataset(parsed)
    _check_names(parsed)
    return resolve(
        parsed, folder_prefix, parameters=parameters, endpoint=endpoint, recorded_times=_is_timed_trace(parsed)
    )


def _with_public_dataset(parsed: ParsedArguments) -> ParsedArguments:
    """Return the arguments with the file and the format of the dataset that --public-dataset names."""
    name = parsed.values.get("input.public")
    if name is None:
        return parsed
    from penstock.datasets.public import PUBLIC_DATASETS

    spelling = parsed.spellings["input.public"]
    for target in ("input.file", "input.format"):
        if target in parsed.values:
            raise UserError(
                f"{parsed.spellings[target]} cannot be combined with {spelling} {name}, which names a file on the hub; "
                "keep one of them."
            )
    dataset = PUBLIC_DATASETS[name]
    return parsed._replace(
        values={**parsed.values, "input.file": dataset.file, "input.format": dataset.format},
        spellings={**parsed.spellings, "input.file": spelling, "input.format": spelling},
    )


def _check_names(parsed: ParsedArguments) -> None:
    """Raise `UserError` for a metric or a format that does not exist, with the flag or key that names it."""
    values, spelling = parsed.values, parsed.spellings
    if "goodput" in values:
        from penstock.metrics.objectives import parse_objectives

        parse_objectives(values["goodput"], spelling["goodput"])
    if "assertions" in values:
        from penstock.metrics.conditions import parse_assertion

        for text in values["assertions"]:
            parse_assertion(text, spelling["assertions"])
    if (metric := values.get("experiment.degradation_metric")) is not None:
        from penstock.metrics.catalogue import CATALOGUE

        if metric not in CATALOGUE:
            hint = did_you_mean(metric, CATALOGUE, "docs/metrics.md lists all metrics.")
            raise UserError(f"{spelling['experiment.degradation_metric']}: there is no metric {metric}; {hint}")
    if "until" in values:
        from penstock.metrics.precision import parse_precision

        parse_precision(values["until"], spelling["until"])
    if "experiment.slos" in values:
        from penstock.metrics.capacity import parse_slo

        for text in values["experiment.slos"]:
            slo = parse_slo(text, spelling["experiment.slos"])
            if not 0 < slo.share < 1:
                raise UserError(
                    f"{spelling['experiment.slos']} {text!r} allows no miss; use a percentile from p1 to p99."
                )
    if {"input.file", "input.format"} <= values.keys():
        from penstock.datasets.formats import lookup

        lookup(values["input.format"], spelling["input.format"])


def asks_for_experiment(parsed: ParsedArguments) -> bool:
    """Return whether the flags ask for repeated runs, a sweep or a search instead of a single run."""
    values = parsed.values
    searches = "experiment.find_max" in values or "experiment.recipe" in values
    return values.get("experiment.runs", 1) > 1 or "experiment.sweep" in values or searches or is_sweep(parsed)


def refuse_experiment(parsed: ParsedArguments, what: str) -> None:
    """Raise UserError if the flags ask for repeated runs, a sweep or a search, which `what` does not do."""
    if asks_for_experiment(parsed):
        raise UserError(
            f"{what} makes one run; leave out --num-profile-runs and --sweep, as well as --find-max, and give one value for "
            "each flag."
        )


_SETS_TIMES = {
    "load.schedule.on",
    "load.rate",
    "load.conversation_rate",
    "load.rate_series",
    "load.user_rate",
    "experiment.sweep",
    "experiment.find_max",
    "experiment.recipe",
}
"""Flags that set the times of requests, instead of those in a trace."""


def _is_timed_trace(parsed: ParsedArguments) -> bool:
    """Return whether to follow a trace's timestamps: as in AIPerf, unless another flag sets the times."""
    values = parsed.values
    if not {"input.file", "input.format"} <= values.keys() or _SETS_TIMES & values.keys():
        return False
    from penstock.datasets.formats import find

    format_ = find(values["input.format"])
    return format_ is not None and format_.has_times is not None and format_.has_times(values["input.file"])
