"""The small files of the recipes of `--search-recipe`: what each found, with AIPerf's names, and the sentences that say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.experiment import VariationFigures
from penstock.metrics.recipe_fits import FIT_FLOOR, best_load, find_knee, fit_curve, neighbours
from penstock.settings.schema import ExperimentSettings

RECIPE_FILES = (
    *("degradation_knee.json", "prefill_curve.json", "decode_itl_surface.json"),
    *("pareto_sweep.json", "max_throughput.json", "max_goodput.json"),
)
Figure = Callable[[str, str], float | None]
"""Returns a figure by its metric and statistic."""


class RecipeResult(NamedTuple):
    file: str
    document: dict[str, Any]
    sentences: list[str]


def recipe_value(settings: ExperimentSettings, figure: Figure) -> float | None:
    """Return the figure that a search maximizes at a load; None if the load does not meet the limits."""
    if settings.recipe == "max-goodput-under-slo":
        share = settings.slo_attainment
        if share is not None and (figure("good_request_fraction", "avg") or 0.0) < share:
            return None
        return figure("goodput", "avg")
    metric, limit = _limit(settings)
    observed = figure(metric, "p95")
    return None if observed is None or observed >= limit else figure("output_token_throughput", "avg")


def _limit(settings: ExperimentSettings) -> tuple[str, float]:
    if settings.recipe == "max-throughput-ttft-sla":
        return "time_to_first_token", settings.ttft_sla_ms or 0.0
    return "inter_token_latency", settings.itl_sla_ms or settings.tpot_sla_ms or 0.0


def recipe_result(settings: ExperimentSettings, variations: Sequence[VariationFigures]) -> RecipeResult | None:
    """Return what the recipe of an experiment found; None without one that has a file."""
    match settings.recipe:
        case "concurrency-ramp":
            return _knee(settings, variations)
        case "prefill-ttft-curve":
            return _prefill_curve(variations)
        case "decode-itl-curve":
            return _decode_surface(variations)
        case "pareto-sweep":
            return _pareto(variations)
    return _peak(settings, variations) if settings.searches_peak else None


def _mean(each: VariationFigures, metric: str, statistic: str) -> float | None:
    figure = each.figures.get(f"{metric}_{statistic}")
    return None if figure is None else figure.mean


def _points(
    variations: Sequence[VariationFigures], parameter: str, metric: str, statistic: str
) -> list[tuple[float, float]]:
    found = [(float(each.parameters[parameter]), _mean(each, metric, statistic)) for each in variations]
    return sorted((x, y) for x, y in found if y is not None)


def _knee(settings: ExperimentSettings, variations: Sequence[VariationFigures]) -> RecipeResult:
    metric, statistic = settings.degradation_metric, settings.degradation_stat
    points = _points(variations, "concurrency", metric, statistic)
    found = find_knee(points, settings.degradation_threshold) if points else None
    knee = None if found is None else found.knee
    name, unit = f"{statistic} of {metric}", CATALOGUE[metric].unit
    if found is None:
        sentence = f"No point has the {name}."
    else:
        share, base = f"{100 * settings.degradation_threshold:g} %", f"{found.baseline[1]:,.4g} {unit}"
        where = f"up to concurrency {points[-1][0]:g}" if knee is None else f"at concurrency {knee[0]:g} and not below"
        verb = "does not exceed" if knee is None else "exceeds"
        sentence = f"The {name} {verb} that of concurrency {found.baseline[0]:g} ({base}) by {share} {where}."
    document = {
        "baseline_concurrency": None if found is None else int(found.baseline[0]),
        f"baseline_{statistic}": None if found is None else found.baseline[1],
        "knee_concurrency": None if knee is None else int(knee[0]),
        f"knee_{statistic}": None if knee is None else knee[1],
        "threshold_pct": settings.degradation_threshold,
        "swept_metric": metric,
        "stat": statistic,
        "swept_param": "phases.profiling.concurrency",
        "all_points": [{"concurrency": int(x), statistic: y} for x, y in points],
    }
    return RecipeResult("degradation_knee.json", document, [sentence])


def _prefill_curve(variations: Sequence[VariationFigures]) -> RecipeResult:
    points = _points(variations, "isl", "time_to_first_token", "avg")
    fit = fit_curve(points)
    document = {
        "fit_form": "linear" if fit is None else fit.form,
        "coefficients": [] if fit is None else fit.coefficients,
        "r_squared": 0.0 if fit is None else fit.r_squared,
        "below_floor": fit is None or fit.r_squared < FIT_FLOOR,
        "r_squared_floor": FIT_FLOOR,
        "raw_points": [{"isl": x, "ttft_ms": y} for x, y in points],
        "swept_metric": "time_to_first_token",
        "stat": "avg",
        "swept_param": "datasets.main.prompts.isl",
    }
    if fit is None:
        return RecipeResult("prefill_curve.json", document, ["Fewer than two points have a time to first token."])
    powers = {0: "", 1: " · ISL", 2: " · ISL²"}
    last = len(fit.coefficients) - 1
    terms = [f"{value:.4g}{powers[last - number]}" for number, value in enumerate(fit.coefficients)]
    doubt = "; the curve explains little of it" if document["below_floor"] else ""
    sentence = f"Time to first token in ms = {' + '.join(terms)} ({fit.form} fit, R² {fit.r_squared:.3f}{doubt})."
    return RecipeResult("prefill_curve.json", document, [sentence])


def _decode_surface(variations: Sequence[VariationFigures]) -> RecipeResult:
    cells = {
        (int(each.parameters["concurrency"]), int(each.parameters["osl"])): value
        for each in variations
        if (value := _mean(each, "inter_token_latency", "avg")) is not None
    }
    slots, lengths = (sorted({key[n] for key in cells}) for n in (0, 1))
    document = {
        "swept_metric": "inter_token_latency",
        "stat": "avg",
        "swept_params": ["phases.profiling.concurrency", "datasets.main.prompts.osl"],
        "raw_points": [{"concurrency": c, "osl": o, "itl_ms": value} for (c, o), value in sorted(cells.items())],
        "surface": {
            "concurrency_axis": slots,
            "osl_axis": lengths,
            "itl_grid": [[cells.get((c, o)) for o in lengths] for c in slots],
        },
        "surface_fit_failed": len(cells) < 2,
    }
    if not cells:
        return RecipeResult("decode_itl_surface.json", document, ["No point has an inter-token latency."])
    (low, where_low), (high, where_high) = (
        choose((value, key) for key, value in cells.items()) for choose in (min, max)
    )
    ends = [f"{value:,.4g} ms (concurrency {c}, OSL {o})" for value, (c, o) in ((low, where_low), (high, where_high))]
    return RecipeResult(
        "decode_itl_surface.json", document, [f"The inter-token latency is from {ends[0]} to {ends[1]}."]
    )


def _pareto(variations: Sequence[VariationFigures]) -> RecipeResult:
    cells: list[dict[str, Any]] = []
    for each in variations:
        x, y = _mean(each, "time_to_first_token", "p95"), _mean(each, "output_token_throughput", "avg")
        if x is not None and y is not None:
            names = {name: int(each.parameters[name]) for name in ("isl", "osl", "concurrency")}
            cells.append({**names, "x": x, "y": y, "pareto_optimal": False})
    for cell in cells:
        cell["pareto_optimal"] = not any(
            other["x"] <= cell["x"] and other["y"] >= cell["y"] and (other["x"], other["y"]) != (cell["x"], cell["y"])
            for other in cells
        )
    document = {
        "x_metric": "time_to_first_token",
        "x_stat": "p95",
        "y_metric": "output_token_throughput",
        "y_stat": "avg",
        "cells": cells,
    }
    optimal = [f"{c['isl']}/{c['osl']} at concurrency {c['concurrency']}" for c in cells if c["pareto_optimal"]]
    claim = "No other point has both a higher output token throughput and a lower p95 of the first token"
    return RecipeResult("pareto_sweep.json", document, [f"{claim}: {', '.join(optimal)}."] if optimal else [])


def _peak(settings: ExperimentSettings, variations: Sequence[VariationFigures]) -> RecipeResult:
    """Return the best load of a search for a peak, with its neighbours, which enclose it."""
    goodput = settings.recipe == "max-goodput-under-slo"
    metric, parameter = ("goodput" if goodput else "output_token_throughput"), settings.parameters[0]
    number = int if parameter == "concurrency" else float
    loads: dict[float, float | None] = {
        number(each.parameters[parameter]): recipe_value(settings, partial(_mean, each)) for each in variations
    }
    best = best_load(loads)
    below, above = (None, None) if best is None else neighbours(loads, best)
    name, unit = parameter.replace("_", " "), CATALOGUE[metric].unit
    condition, limited = "", metric
    if not goodput:
        limited, limit = _limit(settings)
        condition = f" with a p95 of {limited} below {limit:g} ms"
    elif settings.slo_attainment is not None:
        condition = f" with at least {100 * settings.slo_attainment:g} % good requests"
    if best is None and not any(_mean(each, limited, "avg") for each in variations):
        sentence = f"No load has {limited}; choose another recipe, or replies with more tokens."
    elif best is None:
        lowest = f", not even {min(loads):g}" if loads else ""
        sentence = f"No {name} met{condition.removeprefix(' with')}{lowest}."
    else:
        known = ", the highest that was tried"
        if above is not None:
            known = f"; {above:,.4g} {'was not better' if loads[above] is not None else 'does not meet the limit'}"
        sentence = f"The largest {metric.replace('_', ' ')}{condition}: {loads[best]:,.4g} {unit} at {name} {best:,.4g}{known}."
    document = {
        "recipe": settings.recipe,
        "parameter": parameter,
        "metric": metric,
        "found": best is not None,
        "best": None if best is None else {parameter: best, metric: loads[best], "below": below, "above": above},
        "points": [
            {parameter: load, metric: value, "meets_limits": value is not None} for load, value in sorted(loads.items())
        ],
    }
    return RecipeResult("max_goodput.json" if goodput else "max_throughput.json", document, [sentence])
