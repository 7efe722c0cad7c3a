"""What differs between two runs, by how much, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from penstock.compare.bootstrap import Estimate, Values, holm, paired, unpaired
from penstock.compare.read_runs import FAILED, METRICS, Pairs, Requests
from penstock.metrics.catalogue import CATALOGUE

__all__ = ["Comparison", "Row", "Side", "compare"]

_FEWEST = 10
"""Pairs below which no interval means anything."""
_FEWEST_P99 = 200
_SURE = 0.05
_SLICES = 100
_FEWEST_SLICED = 50

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
    """Of a; None when a is 0."""
    low: float | None
    high: float | None
    """95 % interval of the difference; None when there are too few pairs."""
    p: float | None
    """Adjusted for the number of rows (Holm)."""
    pairs: int
    verdict: Verdict


class Side(msgspec.Struct, frozen=True):
    name: str
    urls: list[str]
    requests: int
    unpaired: int
    verdict: str | None
    """Of the run's certificate; None when it has none."""
    reasons: list[str]
    """Why it is not VALID."""
    incomplete: str | None
    """Why the run did not come to its end; None when it did."""


class Comparison(msgspec.Struct, frozen=True):
    a: Side
    b: Side
    pairs: int
    paired_by: str
    """`body`: the same bytes were sent; `plan`: the same place in an interleaved run."""
    rows: list[Row]
    conclusion: str
    notes: list[str]


def compare(pairs: Pairs, *, throughput: bool, notes: tuple[str, ...] = (), seed: int = 0) -> Comparison:
    """`throughput`: each side was a run of its own, so that its rate means something."""
    found: list[tuple[str, str, Estimate, bool]] = []
    for tag in METRICS:
        a, b = pairs.values(tag)
        if len(a):
            found += _of_metric(tag, a, b, seed)
    a, b = pairs.values(FAILED)
    if a.any() or b.any():
        found += [(FAILED, "avg", estimate, len(a) >= _FEWEST) for estimate in paired(a, b, _mean, seed)]
    if throughput:
        found += _throughput(pairs.a, pairs.b, seed)
    sides = _side(pairs.a, pairs.only_a), _side(pairs.b, pairs.only_b)
    rows = _judged(found)
    return Comparison(
        a=sides[0],
        b=sides[1],
        pairs=len(pairs),
        paired_by=pairs.how,
        rows=rows,
        conclusion=conclude(sides, rows),
        notes=[*_doubts(sides), *notes],
    )


def _side(run: Requests, alone: int) -> Side:
    certificate = run.trust.certificate
    return Side(
        name=run.name,
        urls=list(run.urls),
        requests=len(run),
        unpaired=alone,
        verdict=None if certificate is None else certificate.verdict,
        reasons=[] if certificate is None else certificate.reasons,
        incomplete=run.trust.incomplete_reason,
    )


def _of_metric(tag: str, a: Values, b: Values, seed: int) -> Iterator[tuple[str, str, Estimate, bool]]:
    quantiles = [50, 90, 99] if len(a) >= _FEWEST_P99 else [50, 90]
    if tag == "output_sequence_length":
        quantiles = []

    def statistics(values: Values) -> Values:
        return np.concatenate(([values.mean()], np.percentile(values, quantiles))) if quantiles else _mean(values)

    names = ["avg", *(f"p{q}" for q in quantiles)]
    for name, estimate in zip(names, paired(a, b, statistics, seed), strict=True):
        yield tag, name, estimate, len(a) >= _FEWEST


def _mean(values: Values) -> Values:
    return np.array([values.mean()])


def _throughput(a: Requests, b: Requests, seed: int) -> Iterator[tuple[str, str, Estimate, bool]]:
    """Completions in slices of time, each run by itself."""
    if min(len(a), len(b)) < _FEWEST_SLICED:
        return
    for tag, weight in (("request_throughput", None), ("output_token_throughput", "tokens")):
        first, second = _rates(a, weight), _rates(b, weight)
        if first.any() and second.any():
            yield tag, "avg", unpaired(first, second, _mean, seed)[0], True


def _rates(run: Requests, weight: str | None) -> Values:
    good = run.values(FAILED) == 0
    ends = run.values("end")[good]
    begin, end = run.values("start").min(), run.values("end").max()
    slices = min(_SLICES, max(10, len(ends) // 10))
    counts, _ = np.histogram(
        ends, bins=slices, range=(begin, end), weights=None if weight is None else run.values(weight)[good]
    )
    rates: Values = counts / ((end - begin) / 1e9 / slices)
    return rates


def _judged(found: list[tuple[str, str, Estimate, bool]]) -> list[Row]:
    enough = [i for i, (_, _, _, sure) in enumerate(found) if sure]
    adjusted = dict(zip(enough, holm([found[i][2].p for i in enough]), strict=True))
    return [_row(tag, name, estimate, adjusted.get(i)) for i, (tag, name, estimate, _) in enumerate(found)]


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
    if p >= _SURE or estimate.difference == 0:
        return "within noise"
    if tag == "output_sequence_length":
        return "differs"
    return "B is better" if (estimate.difference > 0) == CATALOGUE[tag].larger_is_better else "A is better"


def conclude(sides: Sequence[Side], rows: Sequence[Row]) -> str:
    """What to take from the rows, and nothing when the runs do not bear it."""
    invalid = [letter for letter, side in zip("AB", sides, strict=True) if side.verdict == "INVALID"]
    if invalid:
        return f"{_runs(invalid)} INVALID: do not decide by this comparison."
    said = []
    for letter in "AB":
        names = dict.fromkeys(row.name for row in rows if row.verdict == f"{letter} is better")
        if names:
            said.append(f"{letter} is better, beyond noise, in {', '.join(names)}.")
    few = dict.fromkeys(row.name for row in rows if row.verdict == "too few pairs")
    if len(few) == len({row.name for row in rows}):
        return f"There are too few pairs to tell a difference from noise: it takes {_FEWEST}."
    if not said:
        said.append("No difference is more than noise.")
    if few:
        said.append(f"There are too few pairs (it takes {_FEWEST}) to tell for {', '.join(few)}.")
    return " ".join(said)


def _runs(letters: Sequence[str]) -> str:
    return "Both runs are" if len(letters) > 1 else f"One of the runs ({letters[0]}) is"


def _doubts(sides: Sequence[Side]) -> Iterator[str]:
    """What the runs say against themselves; what both say (two arms of one run do) stands once."""
    said: dict[str, list[str]] = {}
    for letter, side in zip("AB", sides, strict=True):
        if side.incomplete is not None:
            said.setdefault(side.incomplete, []).append(letter)
        if side.verdict not in (None, "VALID"):
            said.setdefault(" ".join([f"{side.verdict}.", *side.reasons]), []).append(letter)
    for text, letters in said.items():
        yield f"{' and '.join(letters)}: {text}"
