"""Compare two runs: the difference in each metric, its confidence interval and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from penstock.compare.bootstrap import Estimate, Values, holm, paired, unpaired
from penstock.compare.read_runs import FAILED, METRICS, Pairs, Requests
from penstock.metrics.catalogue import CATALOGUE

__all__ = ["Comparison", "Row", "Side", "compare"]

_MIN_PAIRS = 10
"""With fewer pairs, an interval means nothing."""
_MIN_PAIRS_P99 = 200
_SIGNIFICANCE = 0.05
_MAX_SLICES = 100
_MIN_REQUESTS_THROUGHPUT = 50

Verdict = Literal["A is better", "B is better", "differs", "within noise", "too few pairs"]


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
    """Bounds of the 95 % confidence interval of the difference; None if there are too few pairs."""
    p: float | None
    """The p-value, adjusted for the number of rows (Holm); None if there are too few pairs."""
    pairs: int
    verdict: Verdict


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
    enough_pairs: bool = True


class Comparison(msgspec.Struct, frozen=True):
    a: Side
    b: Side
    pairs: int
    paired_by: str
    """`body`: the same bytes were sent; `plan`: the same position in the plan of an interleaved run."""
    rows: list[Row]
    conclusion: str
    notes: list[str]


def compare(pairs: Pairs, *, throughput: bool, notes: tuple[str, ...] = (), seed: int = 0) -> Comparison:
    """Compare paired requests. `throughput` adds throughput rows; it requires that each side was a run of its own."""
    results: list[_Result] = []
    for tag in METRICS:
        a, b = pairs.values(tag)
        if len(a):
            results += _compare_metric(tag, a, b, seed)
    a, b = pairs.values(FAILED)
    if a.any() or b.any():
        results += [_Result(FAILED, "avg", estimate, len(a) >= _MIN_PAIRS) for estimate in paired(a, b, _mean, seed)]
    if throughput:
        results += _compare_throughput(pairs.a, pairs.b, seed)
    sides = _side(pairs.a, pairs.only_a), _side(pairs.b, pairs.only_b)
    rows = _rows(results)
    return Comparison(
        a=sides[0],
        b=sides[1],
        pairs=len(pairs),
        paired_by=pairs.paired_by,
        rows=rows,
        conclusion=conclude(sides, rows),
        notes=[*_run_notes(sides), *notes],
    )


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


def _compare_metric(tag: str, a: Values, b: Values, seed: int) -> Iterator[_Result]:
    quantiles = [50, 90, 99] if len(a) >= _MIN_PAIRS_P99 else [50, 90]
    if tag == "output_sequence_length":
        quantiles = []

    def statistics(values: Values) -> Values:
        return np.concatenate(([values.mean()], np.percentile(values, quantiles))) if quantiles else _mean(values)

    names = ["avg", *(f"p{q}" for q in quantiles)]
    for name, estimate in zip(names, paired(a, b, statistics, seed), strict=True):
        yield _Result(tag, name, estimate, len(a) >= _MIN_PAIRS)


def _mean(values: Values) -> Values:
    return np.array([values.mean()])


def _compare_throughput(a: Requests, b: Requests, seed: int) -> Iterator[_Result]:
    """Compare the rates per time slice of two independent runs."""
    if min(len(a), len(b)) < _MIN_REQUESTS_THROUGHPUT:
        return
    for tag, weight in (("request_throughput", None), ("output_token_throughput", "tokens")):
        first, second = _rates(a, weight), _rates(b, weight)
        if first.any() and second.any():
            yield _Result(tag, "avg", unpaired(first, second, _mean, seed)[0])


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


def _rows(results: list[_Result]) -> list[Row]:
    testable = [i for i, result in enumerate(results) if result.enough_pairs]
    adjusted = dict(zip(testable, holm([results[i].estimate.p for i in testable]), strict=True))
    return [_row(r.tag, r.statistic, r.estimate, adjusted.get(i)) for i, r in enumerate(results)]


def _row(tag: str, statistic: str, estimate: Estimate, p: float | None) -> Row:
    metric = CATALOGUE[tag]
    return Row(
        metric=tag,
        name=metric.header,
        unit=metric.unit,
        statistic=statistic,
        a=estimate.a,
        b=estimate.b,
        difference=estimate.difference,
        percent=100 * estimate.difference / estimate.a if estimate.a else None,
        low=None if p is None else estimate.low,
        high=None if p is None else estimate.high,
        p=p,
        pairs=estimate.pairs,
        verdict=_verdict(tag, estimate, p),
    )


def _verdict(tag: str, estimate: Estimate, p: float | None) -> Verdict:
    if p is None:
        return "too few pairs"
    if p >= _SIGNIFICANCE or estimate.difference == 0:
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
        names = dict.fromkeys(row.name for row in rows if row.verdict == f"{letter} is better")
        if names:
            sentences.append(f"{letter} is better, beyond noise, in {', '.join(names)}.")
    undecided = dict.fromkeys(row.name for row in rows if row.verdict == "too few pairs")
    if len(undecided) == len({row.name for row in rows}):
        return f"There are too few pairs to tell a difference from noise: at least {_MIN_PAIRS} are needed."
    if not sentences:
        sentences.append("No difference is more than noise.")
    if undecided:
        sentences.append(f"There are too few pairs (fewer than {_MIN_PAIRS}) for {', '.join(undecided)}.")
    return " ".join(sentences)


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
