"""The best points of a sweep, and those that no other point beats in both throughput and latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.metrics.experiment import VariationFigures

SATURATED_SHARE = 0.95
"""A load saturates a server if it reaches this share of the highest throughput."""

_THROUGHPUT = "request_throughput_avg"
_LATENCIES = ("time_to_first_token_p99", "request_latency_p99")


class BestPoint(NamedTuple):
    name: str
    """AIPerf's name, such as `best_throughput`."""
    figure: str
    variation: VariationFigures


def latency_figure(variations: Sequence[VariationFigures]) -> str:
    """Return the latency by which points are judged: that of the first token if replies are streamed."""
    return _LATENCIES[0] if any(_LATENCIES[0] in each.figures for each in variations) else _LATENCIES[1]


def best_points(variations: Sequence[VariationFigures]) -> list[BestPoint]:
    """Return the points with the highest throughput and with the lowest latency. The first of equal ones counts."""
    latency = latency_figure(variations)
    result = []
    for name, figure, sign in (("best_throughput", _THROUGHPUT, 1), ("best_latency_p99", latency, -1)):
        usable = [each for each in variations if figure in each.figures]
        if usable:
            result.append(BestPoint(name, figure, max(usable, key=lambda each: sign * each.figures[figure].mean)))
    return result


def pareto_optimal(variations: Sequence[VariationFigures]) -> list[VariationFigures]:
    """Return the points for which no other has at least the throughput and at most the latency, and one of them better."""
    latency = latency_figure(variations)
    usable = [each for each in variations if _THROUGHPUT in each.figures and latency in each.figures]

    def beats(a: VariationFigures, b: VariationFigures) -> bool:
        rates = a.figures[_THROUGHPUT].mean, b.figures[_THROUGHPUT].mean
        times = a.figures[latency].mean, b.figures[latency].mean
        return rates[0] >= rates[1] and times[0] <= times[1] and (rates[0] > rates[1] or times[0] < times[1])

    return [each for each in usable if not any(beats(other, each) for other in usable)]


def saturation(variations: Sequence[VariationFigures]) -> VariationFigures | None:
    """Return the point with the lowest concurrency that saturates the server; None without usable points."""
    usable = [each for each in variations if _THROUGHPUT in each.figures]
    highest = max((each.figures[_THROUGHPUT].mean for each in usable), default=0.0)
    saturated = [each for each in usable if each.figures[_THROUGHPUT].mean >= SATURATED_SHARE * highest]
    return min(saturated, key=lambda each: each.parameters["concurrency"], default=None)
