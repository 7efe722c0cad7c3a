"""The metrics that `compare` reports. The command line reads these names too, so this module imports nothing."""

from __future__ import annotations

METRICS = (
    "time_to_first_token",
    "request_latency",
    "effective_latency",
    "inter_token_latency",
    "time_per_output_token",
    "output_token_throughput_per_user",
    "e2e_output_token_throughput",
    "output_sequence_length",
)
"""Metrics with one value per request."""

FAILED = "request_error_rate"

THROUGHPUTS = ("request_throughput", "output_token_throughput")
"""Compared only between separate runs: the servers of an interleaved run share one rate."""

COMPARED = (*METRICS, FAILED, *THROUGHPUTS)

GROUPS = (
    ("request_latency", "effective_latency", "e2e_output_token_throughput"),
    ("inter_token_latency", "time_per_output_token", "output_token_throughput_per_user"),
    THROUGHPUTS,
)
"""Metrics that follow from one another, given the output length, which is tested itself. One of a group is tested: the
primary metric, or else the first that the runs have. A metric that is in no group is always tested."""
