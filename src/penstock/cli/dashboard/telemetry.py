"""The newest values of the servers and GPUs that a run observes."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.cli.dashboard.snapshot import GpuView, ServerView
from penstock.records.log import Sample
from penstock.telemetry.concepts import CACHE, QUEUE, RUNNING
from penstock.telemetry.gpu import DCGM, NVML, POWER, GpuReader
from penstock.telemetry.scrape import PageHistory
from penstock.telemetry.server_metrics import SOURCE


class LiveTelemetry:
    def __init__(self) -> None:
        self._history = PageHistory()
        self._reader = GpuReader()
        self._servers: dict[str, ServerView] = {}
        self._gpus: dict[str, GpuView] = {}

    def add(self, sample: Sample) -> None:
        if sample.source == SOURCE:
            self._add_server(sample)
        elif sample.source in (DCGM, NVML):
            for reading in self._reader.read(sample) or ():
                values = reading.values
                self._gpus[reading.uuid] = GpuView(
                    f"{reading.number} {reading.model}",
                    values.get("nvidia_gpu_utilization"),
                    values.get("nvidia_memory_used"),
                    values.get(POWER),
                    values.get("nvidia_temperature"),
                )

    def _add_server(self, sample: Sample) -> None:
        url = sample.values["url"]
        name = urlsplit(url).netloc.rpartition("@")[2]
        if self._history.read(sample) is None:
            self._servers[url] = ServerView(name, error=sample.values.get("error"))
            return
        values = self._history.concepts(url)
        self._servers[url] = ServerView(name, values.get(QUEUE), values.get(RUNNING), values.get(CACHE))

    @property
    def servers(self) -> list[ServerView]:
        return list(self._servers.values())

    @property
    def gpus(self) -> list[GpuView]:
        return list(self._gpus.values())
