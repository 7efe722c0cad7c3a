"""Times in which failed requests count. `PhaseStats` computes them from the columns of the other times."""

from __future__ import annotations

from penstock.metrics.groups.times import METRICS
from penstock.metrics.metric import MetricGroup, per_run

ADJUSTED = ("request_latency", "time_to_first_token", "decode_duration", "inter_token_latency")
_NOTE = (
    "Each failed request counts as infinitely slow. Percentiles by nearest rank; infinite ones are omitted. Present if "
    "there are failures."
)
_NAMES = {metric.tag: metric.header for metric in METRICS}

GROUP = MetricGroup(
    tuple(
        per_run(f"adj_{tag}", f"{_NAMES[tag]} (error-adjusted)", "ms", _NOTE, order=1200 + n)
        for n, tag in enumerate(ADJUSTED)
    )
)
