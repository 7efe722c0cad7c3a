"""The charts as PNG and SVG."""

import pytest

from penstock.reports.report_html import read_page
from support.records import make_record
from support.runs import report_run

plot = pytest.importorskip("penstock.reports.plot", reason="matplotlib is not installed.", exc_type=ImportError)


def test_each_chart_of_the_page_becomes_a_file_of_each_format(tmp_path):
    run = report_run(tmp_path, [make_record(number=n, at=10 * n) for n in range(4)])
    charts = plot.charts_of(read_page(run.path("report.html")))[:2]
    paths = list(plot.write_plots(charts, str(tmp_path / "plots"), ("png", "svg")))
    assert [path.rpartition("/")[2] for path in paths] == [
        f"{name}.{suffix}" for name in ("ttft-histogram", "ttft-cdf") for suffix in ("png", "svg")
    ]
    assert (tmp_path / "plots" / "ttft-cdf.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plots" / "ttft-cdf.svg").read_text()


def test_plot_has_the_data_of_the_page(tmp_path):
    run = report_run(tmp_path, [make_record(number=n, at=10 * n) for n in range(4)])
    charts = {chart["id"]: chart for chart in plot.charts_of(read_page(run.path("report.html")))}
    chart = charts["gaps-by-position"]
    (axes,) = plot.draw_chart(chart).axes
    assert [line.get_label() for line in axes.lines] == ["p50", "p90", "p99"]
    assert axes.lines[0].get_ydata().tolist() == chart["series"][0]["values"]
    (lanes,) = plot.draw_chart(charts["lanes"]).axes
    assert len(lanes.patches) == 2 * 4


def test_curve_of_a_sweep_joins_only_the_pareto_front():
    chart = {
        "id": "curve",
        "title": "Curve",
        "kind": "scatter",
        "x_label": "ms",
        "y_label": "requests/s",
        "x": [1, 2, 3],
        "series": [
            {"label": "all points", "values": [1, 2, 3], "names": ["a", "b", "c"], "low": [0, 1, 2], "high": [2, 3, 4]},
            {"label": "Pareto front", "values": [1, None, 3]},
        ],
        "marks": [{"x": 2, "label": "objective"}],
    }
    (axes,) = plot.draw_chart(chart).axes
    points, front = axes.lines[:2]
    assert (points.get_linestyle(), front.get_linestyle()) == ("None", "-")
    assert front.get_xdata().tolist() == [1, 3]
    assert {"a", "b", "c", "objective"} <= {text.get_text() for text in axes.texts}
