"""Power and energy of the GPUs for the work of a run. `power_metrics` computes them from GPU telemetry."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metrics.metric import Metric, MetricGroup
from penstock.metrics.statistics import Stats
from penstock.telemetry.gpu import GpuTelemetry

__all__ = ["GROUP", "power_metrics"]


def _metric(tag: str, header: str, unit: str, order: int, note: str, *, larger: bool = False) -> Metric:
    return Metric(f"nvidia_{tag}", header, unit, "run", note, "power", order, larger)


_METRICS = (
    _metric(
        "performance_per_watt",
        "Performance per Watt",
        "requests/sec/W",
        710,
        "request_throughput / nvidia_total_gpu_power.",
        larger=True,
    ),
    _metric(
        "output_tps_per_watt",
        "Output Tokens per Second per Watt",
        "tokens/sec/W",
        712,
        "output_token_throughput / nvidia_total_gpu_power.",
        larger=True,
    ),
    _metric(
        "goodput_per_watt", "Goodput per Watt", "good-req/s/W", 714, "goodput / nvidia_total_gpu_power.", larger=True
    ),
    _metric("average_gpu_power", "Average GPU Power", "W", 720, "nvidia_total_gpu_power / number of GPUs."),
    _metric(
        "total_gpu_energy",
        "Total GPU Energy",
        "J",
        730,
        "Difference of the GPUs' energy counters over the phase; without a counter, power * duration. Includes the idle power.",
    ),
    _metric("total_gpu_power", "Total GPU Power", "W", 740, "Sum over the GPUs of the mean power during the phase."),
    _metric(
        "energy_per_total_token",
        "Energy per Total Token",
        "mJ/token",
        745,
        "1000 * nvidia_total_gpu_energy / (total_isl + total_osl).",
    ),
    _metric(
        "energy_per_output_token",
        "Energy per Output Token",
        "mJ/token",
        750,
        "1000 * nvidia_total_gpu_energy / total_osl.",
    ),
    _metric(
        "energy_per_request",
        "Energy per Request",
        "joules/request",
        755,
        "nvidia_total_gpu_energy / request_count.",
    ),
    _metric(
        "output_tokens_per_joule",
        "Output Tokens per Joule",
        "tokens/J",
        760,
        "total_osl / nvidia_total_gpu_energy.",
        larger=True,
    ),
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
