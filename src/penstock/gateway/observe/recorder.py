"""Recording of ended requests in a worker: spool, metrics and access log."""

from __future__ import annotations

import asyncio
from typing import Literal

from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.spool import Spool
from penstock.gateway.observe.access_log import AccessLog
from penstock.gateway.observe.metrics import Metrics

__all__ = ["Recorder"]

TICK_S = 1.0


class Recorder:
    """Records ended requests. For use in one event loop; only `close` may block."""

    def __init__(
        self, folder: str, worker: int, access_log: Literal["text", "json", "off"] = "off", log_path: str | None = None
    ) -> None:
        self.spool = Spool(folder, worker)
        self.metrics = Metrics(folder, worker)
        self.log = AccessLog(access_log, log_path)
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0

    def record(self, entry: Entry) -> None:
        """Record an entry. Call this exactly once per request. It never raises, and writes the spool first."""
        self.spool.append(entry)
        try:
            self.metrics.observe(entry)
            self.log.write(entry)
        except Exception:
            self._failures += 1

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call `tick` now and once a second until `close`."""
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
        self.spool.close()
        self.log.close()
        self._update_totals()
        self.metrics.close()

    def _update_totals(self) -> None:
        self.metrics.totals |= {
            "spool_entries_total": self.spool.appended,
            "spool_write_failures_total": self.spool.failures,
            "spool_dropped_entries_total": self.spool.dropped,
            "access_log_dropped_lines_total": self.log.dropped,
            "observation_failures_total": self._failures,
        }
