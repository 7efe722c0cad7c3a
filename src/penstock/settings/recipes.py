"""The recipes of `--search-recipe`: the points that a grid of a recipe has, and which flags each recipe takes."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments, ValueList, Variant


class _Recipe(NamedTuple):
    flags: str
    """Fields of `ExperimentSettings` whose flags it takes."""
    needs: str
    """Fields of which it needs at least one."""
    streams: bool = True
    """It judges metrics of streamed replies."""


_LOADS = "search_min search_max"
_RECIPES = {
    "max-throughput-ttft-sla": _Recipe(f"ttft_sla_ms {_LOADS}", "ttft_sla_ms"),
    "max-throughput-itl-sla": _Recipe(f"itl_sla_ms tpot_sla_ms {_LOADS}", "itl_sla_ms tpot_sla_ms"),
    "max-goodput-under-slo": _Recipe(
        f"ttft_sla_ms itl_sla_ms tpot_sla_ms e2e_sla_ms slo_attainment {_LOADS}",
        "ttft_sla_ms tpot_sla_ms itl_sla_ms e2e_sla_ms",
        streams=False,
    ),
    "concurrency-ramp": _Recipe(
        f"{_LOADS} concurrency_steps degradation_threshold degradation_metric degradation_stat", "", streams=False
    ),
    "prefill-ttft-curve": _Recipe("isl_min isl_max isl_steps", ""),
    "decode-itl-curve": _Recipe(f"{_LOADS} concurrency_steps osl_min osl_max osl_steps", ""),
    "pareto-sweep": _Recipe("isl_osl_pairs", "isl_osl_pairs"),
}
"""All but max-concurrency-under-sla, which is a search of its own."""
SEARCHES = ("max-concurrency-under-sla", "max-throughput-ttft-sla", "max-throughput-itl-sla", "max-goodput-under-slo")
"""Recipes that choose the loads by results."""
_LENGTHS = ("input.input_tokens_mean", "input.output_tokens_mean")
MADE_BY_RECIPE = {
    "prefill-ttft-curve": _LENGTHS[:1],
    "decode-itl-curve": _LENGTHS[1:],
    "pareto-sweep": _LENGTHS,
    "max-goodput-under-slo": ("goodput",),
    "max-concurrency-under-sla": ("experiment.find_max", "experiment.slos"),
}
"""Targets that a recipe sets besides the concurrency."""
RECIPE_FIELDS = {name for recipe in _RECIPES.values() for name in recipe.flags.split()}
_LIMITS = (
    ("ttft_sla_ms", "time_to_first_token"),
    ("tpot_sla_ms", "inter_token_latency"),
    ("itl_sla_ms", "inter_token_latency"),
    ("e2e_sla_ms", "request_latency"),
)
_RAMP, _DECODE = (1, 1000, 8), (1, 200, 6)
_ISL, _OSL = (256, 32768, 8), (64, 1024, 4)
"""Lowest and highest value, and number of values, as in AIPerf."""
_PARETO_CONCURRENCIES = (1, 4, 16, 64, 256)


def expand_recipe(parsed: ParsedArguments) -> ParsedArguments:
    """Return the arguments of a recipe with the values of its grid or the objectives of its search, or raise `UserError`."""
    name = parsed.values.get("experiment.recipe")
    recipe = _RECIPES.get(str(name))
    if recipe is None:
        return parsed
    _check(parsed, str(name), recipe)
    match name:
        case "concurrency-ramp":
            return _with_lists(parsed, {"load.concurrency": _steps(parsed, "search_", "concurrency_steps", _RAMP)})
        case "prefill-ttft-curve":
            lists = {"input.input_tokens_mean": _steps(parsed, "isl_", "isl_steps", _ISL)}
            return _with_lists(parsed, lists, {"load.concurrency": 1})
        case "decode-itl-curve":
            concurrency = _steps(parsed, "search_", "concurrency_steps", _DECODE)
            lengths = _steps(parsed, "osl_", "osl_steps", _OSL)
            return _with_lists(parsed, {"load.concurrency": concurrency, "input.output_tokens_mean": lengths})
        case "pareto-sweep":
            return _pareto(parsed)
        case "max-goodput-under-slo":
            return _with_lists(parsed, {}, {"goodput": _goodput(parsed)})
    return parsed


def _check(parsed: ParsedArguments, name: str, recipe: _Recipe) -> None:
    given, spelling = parsed.section("experiment"), parsed.spellings
    flag = f"{spelling['experiment.recipe']} {name}"
    for field in (*RECIPE_FIELDS, "error_rate_sla", "slos", "find_max", "sweep", "level_requests"):
        if field in given and field not in recipe.flags.split():
            raise UserError(f"{spelling[f'experiment.{field}']} does not belong to {flag}; leave it out.")
    if recipe.needs and not {*recipe.needs.split()} & given.keys():
        needed = [f"--{each.replace('_', '-')}" for each in recipe.needs.split()]
        raise UserError(f"{flag} needs {' or '.join(needed)}.")
    streamed = recipe.streams or {"ttft_sla_ms", "itl_sla_ms", "tpot_sla_ms"} & given.keys()
    if streamed and not parsed.values.get("endpoint.streaming") and "input.file" not in parsed.values:
        raise UserError(f"{flag} judges the tokens of streamed replies; add --streaming.")
    if {"itl_sla_ms", "tpot_sla_ms"} <= given.keys() and given["itl_sla_ms"] != given["tpot_sla_ms"]:
        raise UserError("--itl-sla-ms and --tpot-sla-ms limit the same time; keep one of them.")


def _with_lists(
    parsed: ParsedArguments, lists: dict[str, ValueList], fixed: dict[str, object] | None = None
) -> ParsedArguments:
    flag = f"{parsed.spellings['experiment.recipe']} {parsed.values['experiment.recipe']}"
    for target in (*lists, *(fixed or ())):
        if target in parsed.values:
            raise UserError(f"{flag} sets {parsed.spellings[target]} by itself; leave it out.")
    values = {**lists, **(fixed or {})}
    return parsed._replace(values=parsed.values | values, spellings=dict.fromkeys(values, flag) | parsed.spellings)


def _steps(parsed: ParsedArguments, prefix: str, steps: str, defaults: tuple[int, int, int]) -> ValueList:
    """Return whole numbers in a geometric series."""
    given = parsed.section("experiment")
    low, high = (int(given.get(f"{prefix}{end}", value)) for end, value in zip(("min", "max"), defaults, strict=False))
    count = given.get(steps, defaults[2])
    if low >= high:
        raise UserError(
            f"A {parsed.values['experiment.recipe']} needs a range, but its lowest value, {low}, is not below {high}."
        )
    factor = math.log(high / low) / (count - 1)
    return ValueList(sorted({round(low * math.exp(factor * n)) for n in range(count)}))


def _pareto(parsed: ParsedArguments) -> ParsedArguments:
    spelling = parsed.spellings["experiment.isl_osl_pairs"]
    pairs: list[tuple[int, int]] = []
    for text in parsed.values["experiment.isl_osl_pairs"].split(","):
        parts = [part.strip() for part in text.split("/")]
        if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UserError(f"{spelling} must look like 128/128,512/256 (prompt tokens/reply tokens), not {text!r}.")
        pairs.append((int(parts[0]), int(parts[1])))
    if len(set(pairs)) < len(pairs):
        raise UserError(f"{spelling} has a pair twice; its points must differ.")
    parsed = _with_lists(parsed, {}, {"input.input_tokens_mean": 1, "input.output_tokens_mean": 1})
    values = {"load.concurrency": ValueList(_PARETO_CONCURRENCIES)} | parsed.values
    variants = [
        Variant(
            {"isl": isl, "osl": osl},
            values | {"input.input_tokens_mean": isl, "input.output_tokens_mean": osl},
            parsed.spellings,
        )
        for isl, osl in pairs
    ]
    return parsed._replace(values=values, variants=tuple(variants))


def _goodput(parsed: ParsedArguments) -> str:
    """Return the limits of single requests as --goodput takes them."""
    given = parsed.section("experiment")
    return " ".join(dict.fromkeys(f"{metric}:{given[field]:g}" for field, metric in _LIMITS if field in given))
