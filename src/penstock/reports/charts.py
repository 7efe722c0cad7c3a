"""The data of charts, which the HTML page and the plots share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Values

Number = float | int | None
Kind = Literal["line", "steps", "points", "scatter"]
_WIDE_RATIO = 30
_DIGITS = 6
"""Significant digits of the numbers in a page."""


class Series(msgspec.Struct, frozen=True, omit_defaults=True):
    label: str
    values: list[Number]
    """One for each x of the chart; None leaves a gap."""
    low: list[Number] = []
    high: list[Number] = []
    """The ends of an interval around each value."""
    names: list[str] = []
    """The names of points."""
    colour: int | None = None
    """Number of the colour, from 0 on; None takes that of its place in the chart."""


class Mark(msgspec.Struct, frozen=True):
    """A vertical line."""

    x: float
    label: str


class Line(msgspec.Struct, frozen=True):
    """A horizontal line."""

    y: float
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    caption: str = ""
    """What the chart shows, in a sentence."""
    kind: Kind = "line"
    """`steps`: a value lasts from its x to the next one. `points`: the line joins points with intervals. `scatter`: the first
    series has points with names, which no line joins."""
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    x: list[Number]
    end: Number = None
    """Where the last step of a chart of steps ends."""
    series: list[Series]
    marks: list[Mark] = []
    lines: list[Line] = []
    sync: str = ""
    """Charts with the same name show the cursor at the same x."""


Bar = tuple[int, float, float | None, float, int, int, int]
"""A request: its lane; when it started, had its first content and ended, in seconds; its outcome (0: success, 1: failure, 2:
cancelled); the number of its session and its turn."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """Requests as bars over time, in lanes that hold one conversation at a time."""

    id: str = "lanes"
    title: str = "Sessions"
    caption: str
    lanes: int
    bars: list[Bar]


def is_wide(values: Values | Sequence[float]) -> bool:
    """Return whether ascending values need a logarithmic axis."""
    return bool(values[0] > 0 and values[-1] / values[0] >= _WIDE_RATIO)


def numbers(values: Values | Sequence[float] | NDArray[Any]) -> list[Number]:
    """Return numbers for JSON: rounded, and None for those that are not finite."""
    return [_number(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def _number(value: float) -> Number:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
