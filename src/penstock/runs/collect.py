"""The companion that collects telemetry during a run, in a thread of the process that has no measuring loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from penstock.errors import UserError
from penstock.runs.companion import Companion, CompanionControl
from penstock.runs.prepare import Prepared
from penstock.runs.server_readings import own_metrics
from penstock.settings.schema import Settings
from penstock.telemetry.gpu import DCGM, open_nvml
from penstock.telemetry.network import NetworkProbes, ProbedUrl
from penstock.telemetry.scrape import MetricsUrl, Observation, Scraper
from penstock.telemetry.server_metrics import SOURCE
from penstock.workers.job import resolve_origin


class Source(Protocol):
    """A source of samples. Its methods are called in threads, never two at once."""

    def collect(self) -> list[Observation]: ...

    def close(self) -> None: ...


class Collector(Companion):
    """Collects before the first request, at an interval, between phases and after the last request.

    The thread starts with the first poll, when the workers run: they may be forked, and a fork copies no threads.
    """

    def __init__(self, source: Source, interval_s: float) -> None:
        self._source = source
        self._interval_s = interval_s
        self._control: CompanionControl | None = None
        self._collecting = threading.Lock()
        self._found: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, control: CompanionControl) -> None:
        self._control = control
        self._collect_now()

    def poll(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._collect_at_intervals, name="telemetry", daemon=True)
            self._thread.start()
        self._write()
        return False

    def between_phases(self) -> None:
        self._collect_now()

    def finish(self) -> str | None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._write()
        self._source.close()
        return None

    def _collect_now(self) -> None:
        """Collect in a thread of its own, because this one may have a running event loop."""
        thread = threading.Thread(target=self._collect, daemon=True)
        thread.start()
        thread.join()
        self._write()

    def _collect_at_intervals(self) -> None:
        while not self._over.wait(self._interval_s):
            self._collect()

    def _collect(self) -> None:
        with self._collecting:
            for observation in self._source.collect():
                self._found.put(observation)

    def _write(self) -> None:
        while self._control is not None and not self._found.empty():
            observation = self._found.get()
            self._control.add_sample(observation.source, observation.at, observation.values)


def server_metrics(settings: Settings, prepared: Prepared) -> Collector:
    """Return the companion for --server-metrics."""
    telemetry = settings.telemetry
    urls = own_metrics(prepared.targets)
    for found in resolve_metrics_urls(settings, telemetry.server_metrics or (), "--server-metrics", prepared):
        urls.setdefault(found.url, found)
    return Collector(Scraper(SOURCE, list(urls.values())), telemetry.interval_s)


class CombinedSource:
    """Sources that are read one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> list[Observation]:
        return [observation for source in self._sources for observation in source.collect()]

    def close(self) -> None:
        for source in self._sources:
            source.close()


def gpu_telemetry(settings: Settings, prepared: Prepared) -> Collector:
    """Return the companion for --gpu-telemetry."""
    names = settings.telemetry.gpu or ()
    sources: list[Source] = []
    urls = [name for name in names if name != "pynvml"]
    if urls:
        sources.append(Scraper(DCGM, resolve_metrics_urls(settings, urls, "--gpu-telemetry", prepared)))
    if "pynvml" in names:
        sources.append(open_nvml())
    return Collector(CombinedSource(sources), settings.telemetry.interval_s)


def network_latency(settings: Settings, prepared: Prepared) -> Collector:
    """Return the companion for --network-latency-automatic."""
    probed = {target.origin.address: ProbedUrl(target.url, target.origin) for target in prepared.targets}
    return Collector(NetworkProbes(probed.values()), settings.telemetry.ping_interval_s)


def resolve_metrics_urls(settings: Settings, urls: Sequence[str], flag: str, prepared: Prepared) -> list[MetricsUrl]:
    """Return the URLs whose hosts are found, and note those of the others: the run does not need them."""
    found = []
    for url in urls:
        parts = urlsplit(url)
        try:
            origin, _ = resolve_origin(settings.endpoint, parts)
        except UserError:
            note = f"The host of {flag} {url} cannot be found, so nothing is read from it; check its name."
            prepared.companion_notes.append(note)
            continue
        found.append(MetricsUrl(url, origin, f"{parts.path}?{parts.query}" if parts.query else parts.path))
    return found
