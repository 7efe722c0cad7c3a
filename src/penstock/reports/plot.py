"""Draw the charts of a page with matplotlib, as PNG and SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SIZE = (8.0, 4.5)
_COLOURS = ("#0b66c2", "#c2510c", "#158a4b", "#7c3aed", "#b4235f", "#0e7490", "#8a6d00", "#5b6470")
_OUTCOMES = (("succeeded", _COLOURS[0]), ("failed", _COLOURS[1]), ("cancelled", _COLOURS[7]))


def charts_of(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the charts of the page of one or several runs, in the order of the page."""
    if page["kind"] == "runs":
        return list(page["charts"])
    lanes = [] if page["lanes"] is None else [page["lanes"]]
    return [*page["distributions"], *page["timeline"], *page["gaps"], *lanes]


def write_plots(charts: Sequence[Mapping[str, Any]], folder: str, formats: Sequence[str]) -> Iterator[str]:
    """Write each chart into a file of its own, in each of the formats, and yield the paths."""
    os.makedirs(folder, exist_ok=True)
    for chart in charts:
        figure = draw_chart(chart)
        for name in formats:
            path = os.path.join(folder, f"{chart['id']}.{name}")
            # Without a date, the same data give the same file.
            figure.savefig(path, dpi=150, metadata={"Date": None} if name == "svg" else None)
            yield path


def draw_chart(chart: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(chart["title"], loc="left", fontsize=12, fontweight="bold")
    if "bars" in chart:
        _draw_lanes(axes, chart)
    else:
        _draw_series(axes, chart)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure


def _draw_series(axes: Axes, chart: Mapping[str, Any]) -> None:
    axes.grid(True, color="#e7eaee")
    x = [_number(value) for value in chart["x"]]
    kind = chart.get("kind", "line")
    single = len(chart["series"]) == 1 and kind in ("line", "steps")
    for index, series in enumerate(chart["series"]):
        colour = _COLOURS[series.get("colour", index) % len(_COLOURS)]
        y = [_number(value) for value in series["values"]]
        if kind == "steps":
            end = chart.get("end")
            edges, heights = (x, y) if end is None else ([*x, end], [*y, y[-1]])
            axes.step(edges, heights, where="post", color=colour, label=series["label"])
            if single:
                axes.fill_between(edges, heights, step="post", color=colour, alpha=0.15)
            continue
        known = [(at, value) for at, value in zip(x, y, strict=True) if not math.isnan(value)]
        axes.plot(
            [at for at, _ in known],
            [value for _, value in known],
            color=colour,
            label=series["label"],
            marker="o" if kind in ("points", "scatter") else None,
            markersize=5,
            linestyle="none" if kind == "scatter" and index == 0 else "-",
        )
        _draw_intervals(axes, x, series, colour)
        for at, value, name in zip(x, y, series.get("names", ()), strict=False):
            axes.annotate(name, (at, value), xytext=(5, 5), textcoords="offset points", fontsize=8)
    for mark in chart.get("marks", ()):
        axes.axvline(mark["x"], color="#57606a", linestyle="--", linewidth=1)
        axes.annotate(
            mark["label"],
            (mark["x"], 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -10),
            textcoords="offset points",
            fontsize=8,
        )
    for line in chart.get("lines", ()):
        axes.axhline(line["y"], color=_COLOURS[4], linestyle="--", linewidth=1)
        axes.annotate(
            line["label"],
            (0, line["y"]),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel(chart["x_label"])
    axes.set_ylabel(chart["y_label"])
    if chart.get("log_x"):
        axes.set_xscale("log")
    if chart.get("log_y"):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if len(chart["series"]) > 1:
        axes.legend(frameon=False, fontsize=9)


def _draw_intervals(axes: Axes, x: list[float], series: Mapping[str, Any], colour: str) -> None:
    for at, low, high in zip(x, series.get("low", ()), series.get("high", ()), strict=False):
        if low is not None and high is not None:
            axes.vlines(at, low, high, color=colour, linewidth=1)


def _draw_lanes(axes: Axes, lanes: Mapping[str, Any]) -> None:
    for outcome, (name, colour) in enumerate(_OUTCOMES):
        bars = [bar for bar in lanes["bars"] if bar[4] == outcome]
        if bars:
            rows = [bar[0] for bar in bars]
            axes.barh(
                rows,
                [bar[3] - bar[1] for bar in bars],
                left=[bar[1] for bar in bars],
                height=0.8,
                color=colour,
                alpha=0.4,
                linewidth=0,
            )
            firsts = [bar[1] if bar[2] is None else bar[2] for bar in bars]
            widths = [0 if bar[2] is None else bar[3] - bar[2] for bar in bars]
            axes.barh(rows, widths, left=firsts, height=0.8, color=colour, linewidth=0, label=name)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xlabel("Time (s)")
    axes.set_ylabel("Lane")
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
