"""GPU telemetry: readings from DCGM exporters and from NVML, and their figures over the profiling phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.errors import UserError
from penstock.records.log import Sample
from penstock.telemetry.prometheus import Series
from penstock.telemetry.scrape import Observation, PageHistory
from penstock.telemetry.server_metrics import CounterGrowth, GaugeValues, ProfilingWindow, gauge_statistics

DCGM, NVML = "dcgm", "nvml"
"""Sources of the samples."""
ENERGY, POWER = "nvidia_energy_consumption", "nvidia_power_usage"


class _Field(NamedTuple):
    name: str
    unit: str
    dcgm: str
    scale: float = 1.0
    """Factor from the unit of DCGM."""


FIELDS = (
    _Field(POWER, "W", "DCGM_FI_DEV_POWER_USAGE"),
    _Field(ENERGY, "MJ", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-9),
    _Field("nvidia_gpu_utilization", "%", "DCGM_FI_DEV_GPU_UTIL"),
    _Field("nvidia_memory_utilization", "%", "DCGM_FI_DEV_MEM_COPY_UTIL"),
    _Field("nvidia_memory_used", "GB", "DCGM_FI_DEV_FB_USED", 1.048576e-3),
    _Field("nvidia_temperature", "C", "DCGM_FI_DEV_GPU_TEMP"),
    _Field("nvidia_sm_utilization", "%", "DCGM_FI_PROF_SM_ACTIVE", 100),
    _Field("nvidia_sm_clock", "MHz", "DCGM_FI_DEV_SM_CLOCK"),
    _Field("nvidia_memory_clock", "MHz", "DCGM_FI_DEV_MEM_CLOCK"),
    _Field("nvidia_encoder_utilization", "%", "DCGM_FI_DEV_ENC_UTIL"),
    _Field("nvidia_decoder_utilization", "%", "DCGM_FI_DEV_DEC_UTIL"),
    _Field("nvidia_xid_errors", "count", "DCGM_FI_DEV_XID_ERRORS"),
    _Field("nvidia_power_violation", "us", "DCGM_FI_DEV_POWER_VIOLATION"),
)
UNITS = {field.name: field.unit for field in FIELDS}
_BY_DCGM = {field.dcgm: field for field in FIELDS}


class GpuReading(NamedTuple):
    endpoint: str
    number: int
    uuid: str
    model: str
    hostname: str | None
    values: dict[str, float]


class GpuFigures(msgspec.Struct):
    """One GPU over the profiling phases."""

    gpu_index: int
    gpu_name: str
    gpu_uuid: str
    platform: str
    hostname: str | None
    metrics: dict[str, dict[str, Any]]
    """Unit and statistics by field. The energy is the difference over the phases."""
    power_w: float | None = None
    energy_j: float | None = None


class GpuTelemetry(msgspec.Struct):
    configured: list[str]
    successful: list[str]
    errors: dict[str, str]
    gpus: dict[str, dict[str, GpuFigures]]
    """By endpoint, then by `gpu_N`."""

    @property
    def all_gpus(self) -> list[GpuFigures]:
        """Every GPU once, even if two sources report it."""
        return list({gpu.gpu_uuid: gpu for gpus in self.gpus.values() for gpu in gpus.values()}.values())


class GpuReader:
    """Reads the samples of both sources."""

    def __init__(self) -> None:
        self._history = PageHistory()

    def read(self, sample: Sample) -> list[GpuReading] | None:
        """Return the readings of a sample; None if the source failed or the sample is of another kind."""
        if sample.source == DCGM:
            if self._history.read(sample) is None:
                return None
            url = sample.values["url"]
            return list(_dcgm_readings(url, self._history.pages[url].values()))
        if sample.source == NVML and "gpus" in sample.values:
            return [GpuReading(NVML, *gpu) for gpu in sample.values["gpus"]]
        return None


def _dcgm_readings(url: str, page: Any) -> Iterator[GpuReading]:
    gpus: dict[str, tuple[Series, dict[str, float]]] = {}
    for series, value in page:
        field = _BY_DCGM.get(series.name)
        if field is not None:
            uuid = series.labels.get("UUID", series.labels.get("uuid", series.labels.get("gpu", "0")))
            gpus.setdefault(uuid, (series, {}))[1][field.name] = value * field.scale
    for uuid, (series, values) in gpus.items():
        labels = series.labels
        index = int(labels.get("gpu", "0")) if labels.get("gpu", "0").isdigit() else 0
        yield GpuReading(url, index, uuid, labels.get("modelName", "GPU"), labels.get("Hostname"), values)


class Nvml:
    """A source that reads the GPUs of this machine through NVML (package nvidia-ml-py)."""

    def __init__(self) -> None:
        """Raise an exception of NVML if there is no driver."""
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
        self._gpus = [
            (n, h, _text(pynvml.nvmlDeviceGetUUID(h)), _text(pynvml.nvmlDeviceGetName(h)))
            for n, h in enumerate(handles)
        ]

    def collect(self) -> list[Observation]:
        at = monotonic_ns()
        gpus = [(n, uuid, name, None, self._read(handle)) for n, handle, uuid, name in self._gpus]
        return [Observation(NVML, at, {"url": NVML, "gpus": gpus})]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _read(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        readers: dict[str, Callable[[], float]] = {
            POWER: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            ENERGY: lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-9,
            "nvidia_gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "nvidia_memory_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            # Version 2 leaves out what the driver reserves, as nvidia-smi and DCGM do.
            "nvidia_memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used / 1e9,
            "nvidia_temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "nvidia_sm_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "nvidia_memory_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        }
        values = {}
        for name, read in readers.items():
            try:
                values[name] = float(read())
            except nvml.NVMLError:  # the GPU does not have this value
                continue
        return values


def open_nvml() -> Nvml:
    """Raise UserError if NVML finds no driver."""
    import pynvml

    try:
        return Nvml()
    except pynvml.NVMLError as error:
        raise UserError(f"--gpu-telemetry pynvml finds no NVIDIA driver on this machine: {error}.") from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class _Gpu:
    def __init__(self, reading: GpuReading) -> None:
        self.reading = reading
        self.gauges: dict[str, GaugeValues] = {}
        self.energy: CounterGrowth | None = None


class GpuTelemetryBuilder:
    def __init__(self, window: ProfilingWindow) -> None:
        self._window = window
        self._reader = GpuReader()
        self._gpus: dict[tuple[str, str], _Gpu] = {}
        self._endpoints: dict[str, str | None] = {}
        """Every endpoint, with its error if it never answered."""

    def add(self, sample: Sample) -> None:
        if sample.source not in (DCGM, NVML) or sample.at > self._window.stop:
            return
        url, readings = sample.values["url"], self._reader.read(sample)
        if readings is None:
            self._endpoints.setdefault(url, sample.values.get("error", ""))
            return
        self._endpoints[url] = None
        for reading in readings:
            self._add_reading(self._gpus.setdefault((url, reading.uuid), _Gpu(reading)), sample.at, reading.values)

    def _add_reading(self, gpu: _Gpu, at: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            if name != ENERGY:
                gpu.gauges.setdefault(name, GaugeValues()).add(value, at, self._window)
                continue
            is_first = gpu.energy is None
            gpu.energy = gpu.energy or CounterGrowth()
            gpu.energy.add(value, at > self._window.start, is_first)

    def result(self) -> GpuTelemetry | None:
        if not self._endpoints:
            return None
        successful = [url for url, error in self._endpoints.items() if error is None]
        gpus: dict[str, dict[str, GpuFigures]] = {}
        for (url, _), gpu in self._gpus.items():
            gpus.setdefault(url, {})[f"gpu_{gpu.reading.number}"] = self._figures(gpu)
        errors = {url: error for url, error in self._endpoints.items() if error is not None}
        return GpuTelemetry(list(self._endpoints), successful, errors, gpus)

    def _figures(self, gpu: _Gpu) -> GpuFigures:
        metrics: dict[str, dict[str, Any]] = {}
        for name, unit in UNITS.items():
            if name == ENERGY and gpu.energy is not None:
                metrics[name] = {"unit": unit, "avg": gpu.energy.total}
            elif name in gpu.gauges:
                metrics[name] = {"unit": unit, **gauge_statistics(np.asarray(gpu.gauges[name].values))}
        power = metrics[POWER]["avg"] if POWER in metrics else None
        energy = metrics[ENERGY]["avg"] * 1e6 if ENERGY in metrics else 0.0
        if energy <= 0 and power is not None:  # there is no counter, or it is older than the phases
            energy = power * (self._window.end - self._window.start) / 1e9
        reading = gpu.reading
        return GpuFigures(
            reading.number, reading.model, reading.uuid, "nvidia", reading.hostname, metrics, power, energy or None
        )
