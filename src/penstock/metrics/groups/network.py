"""Latencies without the round trip of the network. `network_metrics` computes them from the probes of a run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.metrics.metric import Metric, MetricGroup
from penstock.metrics.statistics import PERCENTILES, Stats
from penstock.telemetry.network import NetworkLatency

_PREFIX = "network_adjusted_"
_SOURCES = {
    "time_to_first_token": ("Network-Adjusted Time to First Token", 101),
    "time_to_first_output_token": ("Network-Adjusted Time to First Output Token", 211),
    "request_latency": ("Network-Adjusted Request Latency", 301),
}
_SHIFTED = ("avg", "min", "max", *(f"p{q}" for q in PERCENTILES))
_METRICS = (
    *(
        Metric(
            f"{_PREFIX}{tag}",
            header,
            "ms",
            "run",
            f"Each statistic of {tag} - network_rtt, at least 0; the standard deviation is the same. Only with "
            "--network-latency-automatic or --network-latency-mean.",
            "main",
            order,
        )
        for tag, (header, order) in _SOURCES.items()
    ),
    Metric(
        "network_rtt",
        "Network RTT",
        "ms",
        "run",
        "Mean time of the TCP handshakes with the servers during the run (--network-latency-automatic), or the value of "
        "--network-latency-mean.",
        "main",
        305,
    ),
)
ADJUSTED_BY_NETWORK = tuple(f"{_PREFIX}{tag}" for tag in _SOURCES)
"""Metrics that have statistics although they are of kind `run`."""


def network_metrics(metrics: Mapping[str, Stats], latency: NetworkLatency) -> dict[str, Stats]:
    """Return the metrics of a phase; tell `latency` which of them are limited to 0."""
    rtt = latency.rtt_ms
    if rtt is None:
        return {}
    found = {}
    clamped = []
    for tag in _SOURCES:
        stats = metrics.get(tag)
        if stats is not None:
            found[f"{_PREFIX}{tag}"] = _shifted(stats, rtt)
            if stats.min is not None and stats.min < rtt:
                clamped.append(tag)
    latency.clamped = tuple(clamped)
    return {**found, "network_rtt": Stats("ms", avg=rtt)}


def _shifted(stats: Stats, by: float) -> Stats:
    values = {name: getattr(stats, name) for name in _SHIFTED}
    shifted = {name: max(0.0, value - by) for name, value in values.items() if value is not None}
    return msgspec.structs.replace(stats, **shifted, sum=None)


GROUP = MetricGroup(_METRICS)
