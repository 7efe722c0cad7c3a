"""Recording of ended requests in a worker: spool, metrics and access log.

Anyone can cause a 401 or 404 without a key or with a name that does not exist, as fast as the gateway answers. So these are
counted in the metrics, but not stored in the ledger, and only the first ones of each second are logged.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.live_requests import LiveRequests
from penstock.gateway.ledger.spool import Spool
from penstock.gateway.observe.access_log import AccessLog
from penstock.gateway.observe.metrics import Metrics

TICK_S = 1.0
UNSTORED = frozenset(("invalid_api_key", "model_not_found"))
"""Errors without an entry in the ledger, unless an upstream sent them."""
SAMPLES_PER_S = 10


class Recorder:
    """Records ended requests. For use in one event loop; only `close` may block."""

    def __init__(
        self, folder: str, worker: int, access_log: Literal["text", "json", "off"] = "off", log_path: str | None = None
    ) -> None:
        self.spool = Spool(folder, worker)
        self.live = LiveRequests(folder, worker)
        self.metrics = Metrics(folder, worker)
        self.log = AccessLog(access_log, log_path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unwritten: list[Entry] = []
        """Entries of this iteration of the event loop, which are written together at its end."""
        self._failures = 0
        self._sample_second = 0
        self._samples = 0
        self._unlogged = 0

    def record(self, entry: Entry) -> None:
        """Record an entry. Call this exactly once per request. It never raises."""
        if entry.error in UNSTORED and not entry.attempts:
            self.live.end(entry.request_id)
            self.record_local(entry)
            return
        self._unwritten.append(entry)
        if self._loop is None:
            self._write()
        elif len(self._unwritten) == 1:
            self._loop.call_soon(self._write)
        try:
            self.metrics.observe(entry)
            self.log.write(entry)
        except Exception:
            self._failures += 1

    def _write(self) -> None:
        """Write the entries to the spool. Until then their requests count as live, so a killed worker loses none."""
        entries, self._unwritten = self._unwritten, []
        if entries:
            self.spool.append(*entries)
            for entry in entries:
                self.live.end(entry.request_id)

    def record_local(self, entry: Entry) -> None:
        """Record a request without a ledger entry. Log a sample of the errors."""
        try:
            self.metrics.observe(entry)
            if entry.status < 400 or self._is_sampled():
                self.log.write(entry)
            else:
                self._unlogged += 1
        except Exception:
            self._failures += 1

    def _is_sampled(self) -> bool:
        second = int(time.monotonic())
        if second != self._sample_second:
            self._sample_second, self._samples = second, 0
        self._samples += 1
        return self._samples <= SAMPLES_PER_S

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `tick` now and once a second until `close`."""
        self._loop = loop
        self.tick()
        self._timer = loop.call_later(TICK_S, self.start, loop)

    def tick(self) -> None:
        self.spool.tick()
        self._update_totals()
        self.metrics.tick()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop = None
        self._write()
        self.spool.close()
        self.live.close()
        self.log.close()
        self._update_totals()
        self.metrics.close()

    def _update_totals(self) -> None:
        self.metrics.totals |= {
            "spool_entries_total": self.spool.appended,
            "spool_write_failures_total": self.spool.failures,
            "spool_dropped_entries_total": self.spool.dropped,
            "access_log_dropped_lines_total": self.log.dropped,
            "access_log_unlogged_refusals_total": self._unlogged,
            "observation_failures_total": self._failures,
        }
