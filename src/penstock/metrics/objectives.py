"""Service level objectives for a single request, as in `--goodput "time_to_first_token:200 inter_token_latency:10"`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.errors import UserError
from penstock.metrics.batch import MeasureTable, Selection
from penstock.metrics.catalogue import CATALOGUE
from penstock.suggest import did_you_mean

_ABBREVIATIONS = {
    "ttft": "time_to_first_token",
    "itl": "inter_token_latency",
    "tpot": "time_per_output_token",
    "e2el": "request_latency",
}
"""The names of other tools."""


class Objective(NamedTuple):
    metric: str
    limit: float
    at_least: bool
    """True if larger values are better."""


def parse_objectives(text: str, flag: str = "--goodput") -> tuple[Objective, ...]:
    """Return the objectives in a text of `metric:limit` pairs, with limits in the units of the report; raise `UserError`."""
    objectives = []
    for pair in text.split():
        name, colon, limit = pair.partition(":")
        tag = _ABBREVIATIONS.get(name.lower(), name)
        metric = CATALOGUE.get(tag)
        try:
            value = float(limit)
        except ValueError:
            value = -1.0
        if not colon or not 0 <= value < float("inf"):
            raise UserError(
                f'{flag} takes pairs of a metric and a limit, as in "time_to_first_token:200", not {pair!r}.'
            )
        if metric is None or metric.kind != "record":
            known = [tag for tag, metric in CATALOGUE.items() if metric.kind == "record"]
            hint = did_you_mean(tag, known, "docs/metrics.md lists the metrics.")
            raise UserError(f"{flag}: {name!r} is not a metric of single requests; {hint}")
        objectives.append(Objective(tag, value, metric.larger_is_better))
    return tuple(objectives)


def meets(objectives: tuple[Objective, ...], table: MeasureTable) -> Selection:
    """Return which requests meet all objectives. A metric that is missing does not."""
    found = np.ones(table.size, np.bool_)
    for metric, limit, at_least in objectives:
        values = table.get(metric)
        found &= values >= limit if at_least else values <= limit
    return found
