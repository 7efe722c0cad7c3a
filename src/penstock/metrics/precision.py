"""A target precision, such as `p99 time_to_first_token ±5%`, and the checkpoints at which a run looks whether it has it.

A run that looks often and stops at the first narrow interval stops too often at a moment at which the interval is narrow and
wrong. The checkpoints therefore double the number of requests, and the k-th one uses an interval of the confidence
1 - 0.05 / 2**k: all of them together are wrong in at most 5 % of the runs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.dependence import InFlight
from penstock.metrics.intervals import CONFIDENCE, FigureInterval, Sample
from penstock.metrics.statistics import PERCENTILES, Values
from penstock.suggest import did_you_mean

FIRST_CHECKPOINT = 100
_TARGET = re.compile(
    r"(?P<statistic>\w+)\s+(?P<metric>\w+)\s*(?:±|\+-|\+/-)\s*(?P<width>\d+\.?\d*|\.\d+)\s*(?P<percent>%?)"
)


class Precision(NamedTuple):
    text: str
    statistic: str
    """`avg` or a percentile such as `p99`."""
    metric: str
    width: float
    """Half of the length that the interval may have."""
    relative: bool
    """The width is a share of the figure."""

    def interval(self, sample: Sample, confidence: float) -> FigureInterval:
        """Return the interval of the figure."""
        if self.statistic == "avg":
            return sample.mean(confidence)
        return sample.percentile(float(self.statistic[1:]), confidence)

    def is_met(self, interval: FigureInterval) -> bool:
        half = interval.half_width
        if half is None or interval.low is None or interval.high is None:
            return False
        allowed = self.width * abs(interval.low + interval.high) / 2 if self.relative else self.width
        return half <= allowed


def parse_precision(text: str, flag: str = "--until") -> Precision:
    """Return the target in a text such as `p99 time_to_first_token ±5%`; raise `UserError`."""
    shown = f"{flag} {text!r}"
    match = _TARGET.fullmatch(text.strip())
    if match is None or not float(match["width"]):
        raise UserError(
            f"{shown} must be a statistic, a metric, ± (or +-) and a number or a percentage, like "
            "'p99 time_to_first_token ±5%'."
        )
    metric, statistic = match["metric"].lower(), match["statistic"].lower()
    if metric not in CATALOGUE or CATALOGUE[metric].kind != "record":
        known = [tag for tag, each in CATALOGUE.items() if each.kind == "record"]
        hint = did_you_mean(metric, known, "docs/metrics.md lists the metrics.")
        raise UserError(f"{shown}: {metric} is not a metric of single requests; {hint}")
    statistics = ("avg", *(f"p{percent}" for percent in PERCENTILES))
    if statistic not in statistics:
        raise UserError(f"{shown}: use one of {', '.join(statistics)} instead of {statistic}.")
    relative = bool(match["percent"])
    return Precision(text.strip(), statistic, metric, float(match["width"]) / (100 if relative else 1), relative)


class Checkpoints:
    """Decides at doubling numbers of values whether a run has its target precision."""

    def __init__(self, target: Precision) -> None:
        self._target = target
        self._number = 0
        self.next_at = FIRST_CHECKPOINT
        """Number of values of the next checkpoint."""
        self.interval: FigureInterval | None = None
        """Interval at the last checkpoint."""
        self.confidence = CONFIDENCE
        """Confidence of that interval."""

    def skip(self, count: int) -> None:
        """Leave out the checkpoints of a run with this many values, because it has already looked at them."""
        while self.next_at <= count:
            self._number += 1
            self.next_at *= 2

    def look(self, values: Values, in_flight: InFlight | None = None) -> bool:
        """Take the values so far, in the order of the starts. Return whether the target is met."""
        if len(values) < self.next_at:
            return False
        self._number += 1
        self.next_at = 2 * len(values)
        self.confidence = 1 - (1 - CONFIDENCE) / 2**self._number
        self.interval = self._target.interval(Sample(values, in_flight), self.confidence)
        return self._target.is_met(self.interval)
