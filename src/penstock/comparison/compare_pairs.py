"""Compare two runs: the difference in each metric, its confidence interval and a verdict.

The mean of the primary metric is tested by itself. The means of the other metrics are tested together: their p-values are
corrected for the number of tests (Holm), so that with equal servers no more than one comparison in twenty reports any of them.
Rows that follow from a tested row are not tested, because each further test would make it harder to find the other
differences: percentiles, and the metrics that share a group in `GROUPS` with a tested one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from penstock.comparison.bootstrap import Estimate, Values, compare_means, compare_percentiles, holm
from penstock.comparison.compared_metrics import FAILED, GROUPS, METRICS, THROUGHPUTS
from penstock.comparison.read_runs import PairedBy, Pairs, Requests
from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.plural import joined

_PERCENTILES = (50, 90, 95, 99)
_MIN_REQUESTS = 10
"""With fewer requests, an interval means nothing."""
_MIN_BEYOND = 2
"""Requests that must be expected beyond a percentile for it to have an interval: the p99 needs 200 requests."""
_SIGNIFICANCE = 0.05
_POWER = 0.8
_MAX_SLICES = 100
_MIN_REQUESTS_THROUGHPUT = 50
_MAX_WAIT_SHARE = 0.05
"""Effective latency has a test of its own if requests waited longer than this share of their latency, as in an open loop."""

Verdict = Literal["A is better", "B is better", "differs", "within noise", "too few requests"]
Test = Literal["primary", "corrected"]


class Row(msgspec.Struct, frozen=True):
    metric: str
    name: str
    unit: str
    statistic: str
    a: float
    b: float
    difference: float
    """b - a, in the metric's unit."""
    percent: float | None
    """The difference in percent of a; None if a is 0."""
    low: float | None
    high: float | None
    """Bounds of the 95 % confidence interval of the difference; None if there are too few requests."""
    p: float | None
    """The p-value, corrected (Holm) unless the row is the primary one; None if the row is not tested."""
    pairs: int
    """Pairs of requests, or requests of the smaller side if they are not paired."""
    verdict: Verdict | None
    """None if the row is not tested."""
    test: Test | None = None
    """`primary`: tested without correction; `corrected`: tested with the other rows; None: not tested."""
    follows: str | None = None
    """The metric whose mean is tested instead, if the row is not tested."""
    detectable: float | None = None
    """The smallest true difference that these runs would have found in 80 % of the cases; None without an interval."""


class Side(msgspec.Struct, frozen=True):
    name: str
    urls: list[str]
    requests: int
    unpaired: int
    verdict: str | None
    """Verdict of the run's certificate; None if it has none."""
    reasons: list[str]
    """Reasons for a verdict other than VALID."""
    incomplete: str | None
    """Why the run did not complete; None if it did."""


class _Result(NamedTuple):
    tag: str
    statistic: str
    estimate: Estimate
    has_interval: bool = True


class Comparison(msgspec.Struct, frozen=True):
    a: Side
    b: Side
    pairs: int
    paired_by: PairedBy
    metric: str
    """The primary metric."""
    rows: list[Row]
    conclusion: str
    notes: list[str]


def compare(
    pairs: Pairs, *, throughput: bool, metric: str | None = None, notes: tuple[str, ...] = (), seed: int = 0
) -> Comparison:
    """Compare the requests of two servers.

    `throughput` adds throughput rows; it requires that each side was a run of its own. `metric` is the primary metric; by
    default time to first token, or request latency if nothing was streamed.
    """
    results: list[_Result] = []
    certificates = [run.status.certificate for run in (pairs.a, pairs.b)]
    unobservable = {tag for certificate in certificates if certificate is not None for tag in certificate.unobservable}
    hidden = [tag for tag in METRICS if tag in unobservable]
    for tag in (tag for tag in METRICS if tag not in hidden):
        a, b = pairs.values(tag)
        if len(a) and len(b):
            results += _compare_metric(tag, a, b, pairs.paired_by is not None, seed)
    a, b = pairs.values(FAILED)
    if a.any() or b.any() or (metric == FAILED and len(a)):
        results.append(_compare_mean(FAILED, a, b, pairs.paired_by is not None, seed))
    if throughput:
        results += _compare_throughput(pairs.a, pairs.b, seed)
    primary = _primary(metric, results)
    sides = _side(pairs.a, pairs.only_a), _side(pairs.b, pairs.only_b)
    rows = _rows(results, primary, _tested_instead(results, primary))
    reasons = () if pairs.unpaired_reason is None else (pairs.unpaired_reason,)
    return Comparison(
        a=sides[0],
        b=sides[1],
        pairs=len(pairs),
        paired_by=pairs.paired_by,
        metric=primary,
        rows=rows,
        conclusion=conclude(sides, rows),
        notes=[*_run_notes(sides), *_hidden_notes(hidden), *reasons, *notes],
    )


def _primary(metric: str | None, results: list[_Result]) -> str:
    tags = [result.tag for result in results]
    if metric is None or not tags:
        return metric or next((tag for tag in ("time_to_first_token", "request_latency") if tag in tags), FAILED)
    if metric not in tags:
        measured = ", ".join(dict.fromkeys(tags))
        raise UserError(f"--metric {metric}: the runs cannot be compared by it. They can by {measured}.")
    return metric


def _tested_instead(results: list[_Result], primary: str) -> dict[str, str]:
    """Return, for each metric, the metric of its group whose mean is tested."""
    means = {result.tag: result.estimate for result in results if result.statistic == "avg"}
    tested = {tag: tag for tag in means}
    for group in GROUPS:
        members = [tag for tag in group if tag in means]
        if "effective_latency" in members and _waited(means):
            members.remove("effective_latency")
        for tag in members:
            tested[tag] = primary if primary in members else members[0]
    return tested


def _waited(means: dict[str, Estimate]) -> bool:
    latency, effective = means["request_latency"], means["effective_latency"]
    limit = 1 + _MAX_WAIT_SHARE
    return effective.a > limit * latency.a or effective.b > limit * latency.b


def _side(run: Requests, unpaired_requests: int) -> Side:
    certificate = run.status.certificate
    return Side(
        name=run.name,
        urls=list(run.urls),
        requests=len(run),
        unpaired=unpaired_requests,
        verdict=None if certificate is None else certificate.verdict,
        reasons=[] if certificate is None else certificate.reasons,
        incomplete=run.status.incomplete_reason,
    )


def _compare_metric(tag: str, a: Values, b: Values, paired: bool, seed: int) -> Iterator[_Result]:
    yield _compare_mean(tag, a, b, paired, seed)
    if tag == "output_sequence_length":
        return
    estimates = compare_percentiles(a, b, _PERCENTILES, paired=paired, seed=seed)
    for percent, estimate in zip(_PERCENTILES, estimates, strict=True):
        needed = max(_MIN_REQUESTS, _MIN_BEYOND * 100 / (100 - percent))
        yield _Result(tag, f"p{percent}", estimate, estimate.pairs >= needed)


def _compare_mean(tag: str, a: Values, b: Values, paired: bool, seed: int) -> _Result:
    estimate = compare_means(a, b, paired=paired, seed=seed)
    return _Result(tag, "avg", estimate, estimate.pairs >= _MIN_REQUESTS)


def _compare_throughput(a: Requests, b: Requests, seed: int) -> Iterator[_Result]:
    """Compare the rates per time slice of two independent runs."""
    if min(len(a), len(b)) < _MIN_REQUESTS_THROUGHPUT:
        return
    for tag, weight in zip(THROUGHPUTS, (None, "tokens"), strict=True):
        first, second = _rates(a, weight), _rates(b, weight)
        if first.any() and second.any():
            yield _compare_mean(tag, first, second, False, seed)


def _rates(run: Requests, weight: str | None) -> Values:
    succeeded = run.values(FAILED) == 0
    ends = run.values("end")[succeeded]
    begin, end = run.values("start").min(), run.values("end").max()
    slices = min(_MAX_SLICES, max(10, len(ends) // 10))
    counts, _ = np.histogram(
        ends, bins=slices, range=(begin, end), weights=None if weight is None else run.values(weight)[succeeded]
    )
    rates: Values = counts / ((end - begin) / 1e9 / slices)
    return rates


def _rows(results: list[_Result], primary: str, tested_instead: dict[str, str]) -> list[Row]:
    tests: dict[int, Test] = {
        i: "primary" if result.tag == primary else "corrected"
        for i, result in enumerate(results)
        if result.statistic == "avg" and tested_instead[result.tag] == result.tag
    }
    p_values = {i: results[i].estimate.p for i in tests if results[i].has_interval}
    corrected = [i for i in p_values if tests[i] == "corrected"]
    p_values |= zip(corrected, holm([p_values[i] or 0.0 for i in corrected]), strict=True)
    return [
        _row(result, tests.get(i), p_values.get(i), None if i in tests else tested_instead[result.tag])
        for i, result in enumerate(results)
    ]


def _row(result: _Result, test: Test | None, p: float | None, follows: str | None) -> Row:
    metric, estimate = CATALOGUE[result.tag], result.estimate
    return Row(
        metric=result.tag,
        name=metric.header,
        unit=metric.unit,
        statistic=result.statistic,
        a=estimate.a,
        b=estimate.b,
        difference=estimate.difference,
        percent=100 * estimate.difference / estimate.a if estimate.a else None,
        low=estimate.low if result.has_interval else None,
        high=estimate.high if result.has_interval else None,
        p=p,
        pairs=estimate.pairs,
        verdict=None if test is None else _verdict(result.tag, estimate, p),
        test=test,
        follows=follows,
        detectable=_detectable(estimate) if result.has_interval else None,
    )


def _detectable(estimate: Estimate) -> float:
    """Return the difference that a test at the level of 95 % finds with a power of 80 %. The interval gives the noise."""
    normal = NormalDist()
    error = (estimate.high - estimate.low) / 2 / normal.inv_cdf(1 - _SIGNIFICANCE / 2)
    return error * (normal.inv_cdf(1 - _SIGNIFICANCE / 2) + normal.inv_cdf(_POWER))


def _verdict(tag: str, estimate: Estimate, p: float | None) -> Verdict:
    if p is None:
        return "too few requests"
    if p > _SIGNIFICANCE or estimate.difference == 0:
        return "within noise"
    if tag == "output_sequence_length":
        return "differs"
    return "B is better" if (estimate.difference > 0) == CATALOGUE[tag].larger_is_better else "A is better"


def conclude(sides: Sequence[Side], rows: Sequence[Row]) -> str:
    """Sum up the rows in a sentence or two; conclude nothing from an INVALID run."""
    invalid = [letter for letter, side in zip("AB", sides, strict=True) if side.verdict == "INVALID"]
    if invalid:
        runs = "Both runs are" if len(invalid) > 1 else f"Run {invalid[0]} is"
        return f"{runs} INVALID: do not rely on this comparison."
    sentences = []
    for letter in "AB":
        names = [row.name for row in rows if row.verdict == f"{letter} is better"]
        if names:
            sentences.append(f"{letter} is better, beyond noise, in {', '.join(names)}.")
    tested = [row for row in rows if row.test is not None]
    undecided = [row.name for row in tested if row.verdict == "too few requests"]
    if len(undecided) == len(tested):
        return f"There are too few requests to tell a difference from noise: at least {_MIN_REQUESTS} are needed."
    if not sentences:
        sentences.append("No difference is more than noise.")
    if undecided:
        sentences.append(f"There are too few requests (fewer than {_MIN_REQUESTS}) for {', '.join(undecided)}.")
    return " ".join(sentences)


def _hidden_notes(hidden: Sequence[str]) -> Iterator[str]:
    if hidden:
        names = joined(CATALOGUE[tag].header for tag in hidden)
        yield f"Not compared, because a run could not observe it: {names}. `certificate.metrics` in its JSON has the reason."


def _run_notes(sides: Sequence[Side]) -> Iterator[str]:
    """Yield the reasons to distrust a run. A reason that both runs share appears once."""
    letters_by_note: dict[str, list[str]] = {}
    for letter, side in zip("AB", sides, strict=True):
        if side.incomplete is not None:
            letters_by_note.setdefault(side.incomplete, []).append(letter)
        if side.verdict not in (None, "VALID"):
            letters_by_note.setdefault(" ".join([f"{side.verdict}.", *side.reasons]), []).append(letter)
    for note, letters in letters_by_note.items():
        yield f"{' and '.join(letters)}: {note}"
