"""Power and energy of the GPUs for the work of a run. `power_metrics` computes them from GPU telemetry."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metrics.metric import MetricGroup, read_metrics
from penstock.metrics.statistics import Stats
from penstock.telemetry.gpu import GpuTelemetry

_METRICS = read_metrics(
    """\
nvidia_performance_per_watt | Performance per Watt | requests/sec/W | order=710 larger
    request_throughput / nvidia_total_gpu_power.
nvidia_output_tps_per_watt | Output Tokens per Second per Watt | tokens/sec/W | order=712 larger
    output_token_throughput / nvidia_total_gpu_power.
nvidia_goodput_per_watt | Goodput per Watt | good-req/s/W | order=714 larger
    goodput / nvidia_total_gpu_power.
nvidia_average_gpu_power | Average GPU Power | W | order=720
    nvidia_total_gpu_power / number of GPUs.
nvidia_total_gpu_energy | Total GPU Energy | J | order=730
    Difference of the GPUs' energy counters over the phase; without a counter, power * duration. Includes the idle
    power.
nvidia_total_gpu_power | Total GPU Power | W | order=740
    Sum over the GPUs of the mean power during the phase.
nvidia_energy_per_total_token | Energy per Total Token | mJ/token | order=745
    1000 * nvidia_total_gpu_energy / (total_isl + total_osl).
nvidia_energy_per_output_token | Energy per Output Token | mJ/token | order=750
    1000 * nvidia_total_gpu_energy / total_osl.
nvidia_energy_per_request | Energy per Request | joules/request | order=755
    nvidia_total_gpu_energy / request_count.
nvidia_output_tokens_per_joule | Output Tokens per Joule | tokens/J | order=760 larger
    total_osl / nvidia_total_gpu_energy.
""",
    "run",
    "power",
)


def power_metrics(metrics: Mapping[str, Stats], telemetry: GpuTelemetry) -> dict[str, Stats]:
    """Return the metrics that the telemetry and the metrics of the phase give."""
    gpus = telemetry.all_gpus
    power = sum(gpu.power_w or 0.0 for gpu in gpus)
    energy = sum(gpu.energy_j or 0.0 for gpu in gpus)

    def value(tag: str) -> float:
        stats = metrics.get(tag)
        return 0.0 if stats is None or stats.avg is None else stats.avg

    values: dict[str, float] = {}
    if power:
        values["total_gpu_power"] = power
        values["average_gpu_power"] = power / len(gpus)
        for tag, of in _PER_WATT.items():
            if of in metrics:
                values[tag] = value(of) / power
    if energy:
        values["total_gpu_energy"] = energy
        output, total = value("total_osl"), value("total_osl") + value("total_isl")
        if output:
            values["energy_per_output_token"] = 1000 * energy / output
            values["output_tokens_per_joule"] = output / energy
        if total:
            values["energy_per_total_token"] = 1000 * energy / total
        if requests := value("request_count"):
            values["energy_per_request"] = energy / requests
    named = {f"nvidia_{tag}": found for tag, found in values.items()}
    return {metric.tag: Stats(metric.unit, avg=named[metric.tag]) for metric in _METRICS if metric.tag in named}


_PER_WATT = {
    "performance_per_watt": "request_throughput",
    "output_tps_per_watt": "output_token_throughput",
    "goodput_per_watt": "goodput",
}
GROUP = MetricGroup(_METRICS)
