"""Checks the flags of a search for the largest load, and turns those of AIPerf into Penstock's."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.recipes import RECIPE_FIELDS, SEARCHES
from penstock.settings.schema import ExperimentSettings

_ATTAINMENT = 0.95
_LARGEST_SHARE = 0.999
"""No number of requests shows that none will ever miss an objective."""
_ONLY_IN_SEARCH = ("slos", "search_min", "search_max", "level_requests", "error_rate_sla")
_LOADS = (
    "load.concurrency",
    "load.rate",
    "load.conversation_rate",
    "load.user_rate",
    "load.rate_series",
    "load.schedule.on",
    "load.concurrency_ramp_s",
    "load.rate_ramp_s",
    "load.conversations",
)


def resolve_search(parsed: ParsedArguments, settings: ExperimentSettings) -> ExperimentSettings:
    """Raise UserError for flags that are missing or contradict each other."""
    spelling = parsed.spellings
    given = parsed.section("experiment")
    if settings.find_max is None and settings.recipe is None:
        for name in (*_ONLY_IN_SEARCH, *RECIPE_FIELDS):
            if name in given:
                raise UserError(
                    f"{spelling[f'experiment.{name}']} belongs to a search; give --find-max concurrency or --find-max "
                    "request-rate too, or leave it out."
                )
        return settings
    if settings.recipe is not None and settings.recipe not in SEARCHES:
        return settings
    if settings.searches_peak:
        pass
    elif settings.recipe is not None:
        settings = _from_recipe(parsed, settings)
    else:
        for name in ("error_rate_sla", *RECIPE_FIELDS):
            if name in given and name not in _ONLY_IN_SEARCH[:4]:
                raise UserError(
                    f"{spelling[f'experiment.{name}']} belongs to --search-recipe; use --slo with --find-max."
                )
    flag = spelling.get("experiment.recipe") or spelling.get("experiment.find_max", "--find-max")
    if not settings.slos and not settings.searches_peak:
        example = "--ttft-sla-ms 300" if settings.recipe else "--slo 'p99 time_to_first_token<300'"
        raise UserError(f"{flag} needs an objective, such as {example}.")
    if settings.search_min > settings.search_max:
        raise UserError(
            f"The lowest load of the search, {settings.search_min:g}, is above the highest one, {settings.search_max:g}."
        )
    whole = settings.find_max == "concurrency" or settings.parameters == ("concurrency",)
    if whole and any(v % 1 for v in (settings.search_min, settings.search_max)):
        raise UserError("The range of a search for a concurrency must be whole numbers.")
    for target in _LOADS:
        if parsed.values.get(target):
            raise UserError(f"{flag} sets the load by itself; leave out {spelling[target]}.")
    for target in ("assertions", "require_valid"):
        if parsed.values.get(target) not in (None, ["false"]):
            raise UserError(f"{flag} judges each load by the objectives; leave out {spelling[target]}.")
    if settings.runs > 1 or settings.sweep is not None:
        name = "experiment.sweep" if settings.sweep is not None else "experiment.runs"
        raise UserError(f"{flag} is one search; leave out {spelling[name]}.")
    return settings


def _from_recipe(parsed: ParsedArguments, settings: ExperimentSettings) -> ExperimentSettings:
    for name in ("find_max", "slos"):
        if f"experiment.{name}" in parsed.values:
            raise UserError(f"Give either {parsed.spellings[f'experiment.{name}']} or --search-recipe, not both.")
    share = _ATTAINMENT if settings.slo_attainment is None else min(_LARGEST_SHARE, settings.slo_attainment)
    slos = [
        f"p{100 * share:g} {metric}<{limit:g}"
        for metric, limit in (
            ("time_to_first_token", settings.ttft_sla_ms),
            ("inter_token_latency", settings.itl_sla_ms or settings.tpot_sla_ms),
            ("request_latency", settings.e2e_sla_ms),
        )
        if limit is not None
    ]
    if settings.error_rate_sla is not None:
        slos.append(f"request_error_rate<{100 * settings.error_rate_sla:g}")
    return replace(settings, find_max="concurrency", slos=tuple(slos))
