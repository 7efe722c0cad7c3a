"""The companion that reads the servers' own metrics before the first request and after the last one, without being asked to.

Two readings are enough for the growth of counters, and put no load on a server that is measured.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from penstock.runs.companion import Companion, CompanionControl
from penstock.schedule.phase import Phase
from penstock.settings.schema import Settings
from penstock.telemetry.scrape import MetricsUrl, Observation, Scraper
from penstock.telemetry.server_metrics import READINGS
from penstock.workers.job import Target


class ServerReadings(Companion):
    """Begins the first reading at once, in a thread, and cancels it if it is not complete when the run is ready. A run without
    a first reading has no later ones. Neither has one with a failed reading: a server without metrics is asked once."""

    def __init__(self, targets: Iterable[Target]) -> None:
        self._scraper: Scraper | None = Scraper(READINGS, list(own_metrics(targets).values()))
        self._loop = asyncio.SelectorEventLoop()
        self._control: CompanionControl | None = None
        self._begin_reading()

    def _begin_reading(self) -> None:
        assert self._scraper is not None
        self._reading = self._loop.create_task(self._scraper.read())
        waited = asyncio.wait({self._reading})  # does not raise what the task raises
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(waited,), daemon=True)
        self._thread.start()

    def __enter__(self) -> ServerReadings:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the first reading."""
        self._thread.join(seconds)

    def start(self, control: CompanionControl) -> None:
        self._control = control
        self._cancel()
        self._end_reading()

    def after_phase(self, phase: Phase) -> None:
        del phase
        if self._scraper is not None:
            self._begin_reading()
            self._thread.join()
            self._end_reading()

    def finish(self) -> str | None:
        self._cancel()
        self._close()
        return None

    def _cancel(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._reading.cancel)
            self._thread.join()

    def _end_reading(self) -> None:
        """Write what was read, unless a server did not answer."""
        found: list[Observation] = [] if self._reading.cancelled() else self._reading.result()
        if not found or any("error" in each.values for each in found):
            self._close()
        elif self._control is not None:
            for each in found:
                self._control.add_sample(each.source, each.at, each.values)

    def _close(self) -> None:
        if self._scraper is not None:
            self._scraper.close()
            self._scraper = None
            self._loop.close()


def own_metrics(targets: Iterable[Target]) -> dict[str, MetricsUrl]:
    """Return the metrics of the servers that are measured, by URL."""
    urls = {}
    for target in targets:
        parts = urlsplit(target.url)
        url = f"{parts.scheme}://{parts.netloc}/metrics"
        urls[url] = MetricsUrl(url, target.origin, "/metrics")
    return urls


def reads_metrics(settings: Settings) -> bool:
    """Return whether the servers' own metrics are read before and after a run. The points of a search overlap."""
    return settings.telemetry.reads_server_metrics and settings.experiment.find_max is None
