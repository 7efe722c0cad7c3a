"""GPU telemetry from recorded DCGM pages and from a fake NVML."""

from __future__ import annotations

import csv
import io
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.errors import UserError
from penstock.records.log import RunLog, RunnerLog, Sample
from penstock.records.record import Record, Usage
from penstock.settings.schema import TelemetrySettings
from penstock.telemetry.gpu import DCGM, GpuTelemetryBuilder, Nvml, open_nvml
from penstock.telemetry.server_metrics import ProfilingWindow
from support.runs import ReportedRun, input_texts, load_word_tokenizer, make_settings, write_artifacts, write_log

SECOND = 1_000_000_000
URL = "http://node:9400/metrics"


def page(power: tuple[float, float], energy_mj: tuple[int, int]) -> str:
    """Return a page as dcgm-exporter writes it, for two GPUs."""
    values = {
        "DCGM_FI_DEV_SM_CLOCK": ("gauge", (1980, 1755)),
        "DCGM_FI_DEV_MEM_CLOCK": ("gauge", (2619, 2619)),
        "DCGM_FI_DEV_GPU_TEMP": ("gauge", (41, 39)),
        "DCGM_FI_DEV_POWER_USAGE": ("gauge", power),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", energy_mj),
        "DCGM_FI_DEV_GPU_UTIL": ("gauge", (90, 70)),
        "DCGM_FI_DEV_FB_USED": ("gauge", (40000, 20000)),
    }
    lines = []
    for name, (kind, numbers) in values.items():
        lines += [f"# HELP {name} {name.lower()}", f"# TYPE {name} {kind}"]
        for gpu, value in enumerate(numbers):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:0{gpu}:00.0",device="nvidia{gpu}",'
            labels += 'modelName="NVIDIA H100 80GB HBM3",Hostname="node1",DCGM_FI_DRIVER_VERSION="550.90.07"'
            lines.append(f"{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


PAGES = {
    -1: page((100, 80), (5_000_000, 1_000_000)),
    1: page((300, 200), (5_300_000, 1_200_000)),
    2: page((500, 400), (5_800_000, 1_600_000)),
    5: page((110, 90), (6_000_000, 1_700_000)),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReportedRun:
    """Two requests of 4 s with 10 output tokens each."""
    folder = tmp_path_factory.mktemp("gpu")
    records = [
        Record(
            phase=0,
            number=n,
            conversation=0,
            turn=0,
            payload=0,
            worker=0,
            url=0,
            request_id=f"r{n}",
            correlation_id="c",
            intended=0,
            issued=0,
            start=0,
            sent=1,
            first_byte=SECOND,
            end=4 * SECOND,
            status=200,
            streamed=True,
            stamps=[SECOND, 4 * SECOND],
            pieces=[1, 9],
            outputs=["one two three four five six seven eight nine ten"],
            usage=Usage(prompt=3, completion=10),
        )
        for n in range(2)
    ]
    settings = msgspec.structs.replace(make_settings(), telemetry=TelemetrySettings(gpu=(URL, "http://no:1/metrics")))
    path = write_log(folder, records, settings=settings)
    log = RunnerLog(path)
    for second, text in PAGES.items():
        log.sample(Sample(DCGM, second * SECOND, {"url": URL, "latency_ns": 1, "page": text}))
    log.sample(Sample(DCGM, 0, {"url": "http://no:1/metrics", "error": "Nothing listens there."}))
    log.close()
    reader = RunLog(path)
    summary = write_artifacts(reader, str(folder / "out"), load_word_tokenizer, input_texts)
    return ReportedRun(summary, str(folder / "out"))


def test_summary_has_the_telemetry_of_each_gpu(run: ReportedRun) -> None:
    data = run.json["telemetry_data"]
    assert data["summary"]["endpoints_successful"] == [URL]
    (error,) = data["error_summary"]
    assert error["error_details"]["message"] == "http://no:1/metrics: Nothing listens there."
    assert error["count"] == 1
    gpu = data["endpoints"]["node:9400"]["gpus"]["gpu_1"]
    assert (gpu["gpu_uuid"], gpu["gpu_name"], gpu["hostname"]) == ("GPU-1", "NVIDIA H100 80GB HBM3", "node1")
    power = gpu["metrics"]["nvidia_power_usage"]
    assert (power["unit"], power["avg"], power["min"], power["max"]) == ("W", 300, 200, 400)
    assert gpu["metrics"]["nvidia_memory_used"]["avg"] == pytest.approx(20.97152)
    assert gpu["metrics"]["nvidia_energy_consumption"]["avg"] == pytest.approx(0.0007)


def test_energy_is_the_difference_of_the_counters_over_the_phase(run: ReportedRun) -> None:
    metrics = run.json
    energy = (1_000_000 + 700_000) / 1000  # J of both GPUs
    assert metrics["nvidia_total_gpu_energy"] == {"unit": "J", "avg": pytest.approx(energy)}
    assert metrics["nvidia_energy_per_request"]["avg"] == pytest.approx(energy / 2)
    assert metrics["nvidia_energy_per_output_token"]["avg"] == pytest.approx(1000 * energy / 20)
    assert metrics["nvidia_total_gpu_power"]["avg"] == pytest.approx(700)
    assert metrics["nvidia_average_gpu_power"]["avg"] == pytest.approx(350)
    assert metrics["nvidia_performance_per_watt"]["avg"] == pytest.approx(0.5 / 700)


def test_csv_has_a_section_of_gpus_and_every_reading_is_a_line(run: ReportedRun) -> None:
    section = "\r\n".join(run.csv).partition("\r\n\r\n\r\n")[2]
    rows = list(csv.DictReader(io.StringIO(section)))
    power = {row["GPU_UUID"]: row["avg"] for row in rows if row["Metric"] == "nvidia_power_usage (W)"}
    assert power == {"GPU-0": "400.00", "GPU-1": "300.00"}
    lines = [json.loads(line) for line in run.read("gpu_telemetry_export.jsonl").splitlines()]
    assert {line["telemetry_source_url"] for line in lines} == {URL}
    assert [line["telemetry_data"]["nvidia_power_usage"] for line in lines if line["gpu_index"] == 0] == [
        100,
        300,
        500,
        110,
    ]


def test_screen_shows_gpus_energy_and_the_exporter_that_did_not_answer(run: ReportedRun) -> None:
    text = run.read("profile_export_console.txt")
    for words in ("GPU Telemetry", "0: NVIDIA H100", "Energy per Request", "No GPU telemetry from http://no:1/metrics"):
        assert words in text


class NVMLError(Exception):
    pass


def fake_nvml(**functions: Any) -> ModuleType:
    """A module with the functions of pynvml, for one GPU without an energy counter."""
    module = ModuleType("pynvml")

    def unsupported(_handle: Any) -> int:
        raise NVMLError("Not Supported")

    known: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda n: n,
        "nvmlDeviceGetUUID": lambda _: b"GPU-x",
        "nvmlDeviceGetName": lambda _: "NVIDIA L4",
        "nvmlDeviceGetPowerUsage": lambda _: 50_000,
        "nvmlDeviceGetTotalEnergyConsumption": unsupported,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=60, memory=30),
        "nvmlMemory_v2": 2,
        "nvmlDeviceGetMemoryInfo": lambda _, version: SimpleNamespace(used={2: 12e9}[version]),
        "nvmlDeviceGetTemperature": lambda _, sensor: 55,
        "nvmlDeviceGetClockInfo": lambda _, clock: 1000 * clock,
    }
    for name, function in (known | functions).items():
        setattr(module, name, function)
    return module


def test_nvml_reads_the_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    source = Nvml()
    (observation,) = source.collect()
    source.close()
    builder = GpuTelemetryBuilder(ProfilingWindow(0, 4 * SECOND, 8 * SECOND))
    builder.add(
        msgspec.msgpack.decode(msgspec.msgpack.encode(Sample(observation.source, 1, observation.values)), type=Sample)
    )
    telemetry = builder.result()
    assert telemetry is not None
    (gpu,) = telemetry.all_gpus
    assert (gpu.gpu_name, gpu.gpu_uuid) == ("NVIDIA L4", "GPU-x")
    averages = {name: figures["avg"] for name, figures in gpu.metrics.items()}
    assert averages == {
        "nvidia_power_usage": 50,
        "nvidia_gpu_utilization": 60,
        "nvidia_memory_utilization": 30,
        "nvidia_memory_used": 12,
        "nvidia_temperature": 55,
        "nvidia_sm_clock": 1000,
        "nvidia_memory_clock": 2000,
    }
    assert gpu.energy_j == 200  # power * duration


def test_machine_without_a_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=fail))
    with pytest.raises(UserError, match="no NVIDIA driver on this machine: Driver Not Loaded"):
        open_nvml()
