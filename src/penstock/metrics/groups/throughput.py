"""The duration of a phase and the rates over it."""

from __future__ import annotations

from penstock.metrics.metric import MetricGroup, PhaseFigures, read_metrics

_METRICS = read_metrics(
    """\
request_throughput | Request Throughput | requests/sec | order=900 larger
    request_count / benchmark_duration. Includes the ramp-up and the last requests' tail.
output_token_throughput | Output Token Throughput | tokens/sec | order=800 larger
    total_osl / benchmark_duration.
input_token_throughput | Input Token Throughput | tokens/sec | order=805 larger
    total_isl / benchmark_duration.
total_token_throughput | Total Token Throughput | tokens/sec | order=810 larger
    (total_isl + total_osl) / benchmark_duration.
benchmark_duration | Benchmark Duration | sec
    From the first start to the last end of all requests, including failed and cancelled ones, so that a server that
    hangs does not look fast. AIPerf counts successful requests only.
""",
    "run",
)


def _summarize(figures: PhaseFigures) -> dict[str, float]:
    duration_s = figures.duration_s
    if duration_s is None:
        return {}
    rates = {"benchmark_duration": duration_s}
    if not duration_s:
        return rates
    rates["request_throughput"] = figures.succeeded / duration_s
    inputs, outputs = figures.total("input_sequence_length"), figures.total("output_sequence_length")
    if inputs is not None:
        rates["input_token_throughput"] = inputs / duration_s
    if outputs is not None:
        rates["output_token_throughput"] = outputs / duration_s
    if inputs is not None and outputs is not None:
        rates["total_token_throughput"] = (inputs + outputs) / duration_s
    return rates


GROUP = MetricGroup(_METRICS, summarize=_summarize)
