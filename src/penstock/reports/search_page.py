"""The parts of the page of a search: the limit, the curve of all loads for each objective, and the loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.metrics.capacity import ERROR_RATE, LoadResult, ObjectiveTest, SearchOutcome, Slo
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.experiment import VariationFigures
from penstock.metrics.intervals import clopper_pearson
from penstock.plural import counted
from penstock.reports.charts import Chart, Line, Mark, Series, is_wide, numbers

_AT_LIMIT = (("request_throughput_avg", "Requests/s"), ("output_token_throughput_avg", "Output tokens/s"))


def search_title(search: SearchOutcome) -> str:
    objectives = " and ".join(slo.text for slo in search.slos)
    loads = search.result.loads
    judged = counted(_judged(search), "judged request")
    return f"Search for the largest {_name(search)} with {objectives}: {counted(len(loads), 'load')}, {judged}"


def limit_sentence(search: SearchOutcome) -> str:
    name, result = _name(search), search.result
    limit = result.limit
    if not result.loads:
        return "Nothing was measured."
    if limit is None:
        return _no_limit(search)
    judged = f"({_judged(search):,} requests judged)"
    if limit.high is None:
        return f"The objectives are met up to {name} {limit.low:g}, the highest that was tried {judged}."
    return (
        f"The largest {name} within the objectives is at least {limit.low:g} and below {limit.high:g}; the monotone fit "
        f"crosses the limit at {limit.estimate:.4g} {judged}."
    )


def _judged(search: SearchOutcome) -> int:
    return sum(load.requests + load.requests_before for load in search.result.loads)


def search_notes(search: SearchOutcome) -> Iterator[str]:
    """Yield what else there is to say about the answer: how it changed with time, and whether the client distorted it."""
    name, limit = _name(search), search.result.limit
    for load in search.result.loads:
        if load.changed:
            earlier = "failed" if load.decision == "pass" else "passed"
            now = "passed" if load.decision == "pass" else "failed"
            yield (
                f"The {name} {load.value:g} {earlier} at first and {now} at its last visit: the server warmed up, or it has "
                "two stable states, and which of them it is in depends on the load before."
            )
    ends = () if limit is None else (limit.low, limit.high)
    if short := [f"{load.value:g}" for load in search.result.loads if load.value in ends and not load.is_final]:
        yield (
            f"What was found at the {name} {' and '.join(short)} rests on a quick test of few requests, as the search ended "
            "before its last visit."
        )
    for value in ends:
        verdict = None if value is None else search.certificates.get(value)
        if verdict not in (None, "VALID"):
            yield f"The certificate of the {name} {value:g}, which decided, is {verdict}: the client may have distorted it."


def _no_limit(search: SearchOutcome) -> str:
    """Return why a search has no limit: its lowest load fails or is not decided."""
    name, loads = _name(search), search.result.loads
    lowest = loads[0]
    if lowest.decision is not None:
        return f"No {name} met the objectives, not even {lowest.value:g}."
    failed = next((load for load in loads if load.decision == "fail"), None)
    known = "could be decided" if failed is None else f"is known to meet the objectives, and {failed.value:g} fails"
    close = any(lowest.misses) and lowest.requests >= ObjectiveTest(search.slos).max_requests
    reason = (
        "their misses are too close to the allowed share" if close else "they are too few or cover too short a time"
    )
    unclear = ""
    if lowest.unclear:
        unclear = f" {counted(lowest.unclear, 'more request')} may have missed an objective only because of the client."
    judged = counted(lowest.requests, "request")
    return f"No {name} {known}: {judged} did not suffice to decide the lowest, {lowest.value:g}; {reason}.{unclear}"


def limit_cards(search: SearchOutcome, variations: Sequence[VariationFigures]) -> list[dict[str, Any]]:
    """Return the limit, and the throughput at the highest load that passed."""
    name, limit = _name(search), search.result.limit
    label = f"Largest {name} within the objectives"
    if limit is None:
        return [{"label": label, "value": "none", "more": ["No load passed."]}]
    end = "the highest that was tried" if limit.high is None else f"{limit.high:,g} fails"
    fit = [] if limit.high is None else [f"the fit crosses the limit at {limit.estimate:,.4g}"]
    cards: list[dict[str, Any]] = [
        {"label": label, "value": f"{limit.low:,g}", "more": [f"{limit.low:,g} passes, {end}", *fit]}
    ]
    at_limit = [each for each in variations if each.parameters.get(search.parameter) == limit.low]
    for figure, title in _AT_LIMIT:
        if at_limit and figure in at_limit[-1].figures:
            value = numbers([at_limit[-1].figures[figure].mean])[0]
            cards.append({"label": f"{title} at {name} {limit.low:,g}", "value": value, "more": []})
    return cards


def load_table(search: SearchOutcome) -> dict[str, Any]:
    rows = []
    for load in search.result.loads:
        row: list[Any] = [f"{_name(search)} {load.value:,g}", {"status": _verdict(load)}, load.requests]
        for observed, misses in zip(load.observed, load.misses, strict=True):
            share = 100 * misses / max(1, load.requests)
            row += [numbers([observed])[0], f"{misses:,} ({share:.3g} %)"]
        rows.append([*row, search.certificates.get(load.value, "")])
    columns = ["Load", "Decision", "Requests judged"]
    for slo in search.slos:
        columns += [f"{_subject(slo)} {_goal(slo)}", f"misses (allowed {_allowed(slo):.3g} %)"]
    columns.append("Certificate")
    return {"columns": columns, "rows": rows}


def objective_charts(search: SearchOutcome) -> Iterator[Chart]:
    """Return two charts for each objective: the figure that it limits, and the share of requests that miss it."""
    loads, limit = search.result.loads, search.result.limit
    if len(loads) < 2:
        return
    name = _name(search)
    values = [load.value for load in loads]
    marks = []
    if limit is not None and limit.high is not None:
        marks.append(Mark(limit.estimate, f"limit: {limit.low:,g} to {limit.high:,g}"))
    for i, slo in enumerate(search.slos):
        subject, decisions = _subject(slo), [_verdict(load) for load in loads]
        common: dict[str, Any] = {
            "kind": "points",
            "x_label": name,
            "x": numbers(values),
            "log_x": is_wide(values),
            "marks": marks,
        }
        yield Chart(
            id=f"objective-{i + 1}",
            title=f"{subject} by {name}",
            caption=f"{_goal(slo, 'Objective: ')}. Each point is a load with its decision.",
            y_label=_unit(slo),
            series=[Series(subject, numbers([load.observed[i] for load in loads]), names=decisions)],
            lines=[Line(slo.limit, _goal(slo, "objective "))],
            **common,
        )
        shares = [clopper_pearson(load.misses[i], load.requests) for load in loads]
        observed = Series(
            "observed",
            numbers([100 * load.misses[i] / load.requests for load in loads]),
            numbers([100 * low for low, _ in shares]),
            numbers([100 * high for _, high in shares]),
            names=decisions,
        )
        yield Chart(
            id=f"misses-{i + 1}",
            title=f"Requests that miss: {subject} {_goal(slo)}",
            caption=f"The objective allows {_allowed(slo):.3g} %. Vertical lines are 95 % confidence intervals.",
            y_label="requests (%)",
            series=[observed, Series("monotone fit", numbers([100 * fit[i] for fit in search.result.fitted]))],
            lines=[Line(_allowed(slo), f"allowed {_allowed(slo):.3g} %")],
            **common,
        )


def _name(search: SearchOutcome) -> str:
    return search.parameter.replace("_", " ")


def _verdict(load: LoadResult) -> str:
    return load.decision or "undecided"


def _allowed(slo: Slo) -> float:
    """Return the share of requests that may miss the objective, in percent."""
    return 100 * slo.allowed


def _subject(slo: Slo) -> str:
    if slo.metric == ERROR_RATE:
        return "Failed requests"
    percentile = round(100 * (1 - slo.share if slo.at_least else slo.share), 3)
    return f"{CATALOGUE[slo.metric].header} p{percentile:g}"


def _unit(slo: Slo) -> str:
    return "%" if slo.metric == ERROR_RATE else CATALOGUE[slo.metric].unit


def _goal(slo: Slo, before: str = "") -> str:
    return f"{before}{'>' if slo.at_least else '<'} {slo.limit:,g} {_unit(slo)}"
