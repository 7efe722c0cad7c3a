"""Requests that met all service level objectives (`--goodput`). `PhaseStats` counts them."""

from __future__ import annotations

from penstock.metrics.metric import MetricGroup, PhaseFigures, read_metrics

_METRICS = read_metrics(
    """\
good_request_count | Good Request Count | requests | larger
    Successful requests that met every objective of --goodput. A request without the metric of an objective did not.
good_request_fraction | Good Request Fraction | ratio | order=1005 larger
    good_request_count / completed_request_count: a failed request is a miss.
goodput | Goodput | requests/sec | order=1000 larger
    good_request_count / benchmark_duration.
""",
    "run",
)


def _summarize(figures: PhaseFigures) -> dict[str, float]:
    good = figures.counts.get("good_request_count")
    if good is None:
        return {}
    values = {}
    if completed := figures.counts["completed_request_count"]:
        values["good_request_fraction"] = good / completed
    if figures.duration_s:
        values["goodput"] = good / figures.duration_s
    return values


GROUP = MetricGroup(_METRICS, summarize=_summarize)
