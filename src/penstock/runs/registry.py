"""The companions of a run. Each entry names a function that returns a companion, or None if the run needs none."""

from __future__ import annotations

from pkgutil import resolve_name

from penstock.runs.companion import Companion
from penstock.runs.prepare import Prepared
from penstock.settings.schema import Settings

__all__ = ["COMPANIONS", "companions"]

COMPANIONS = (
    "penstock.runs.indexer:input_files",
    "penstock.runs.server_calls:server_calls",
    "penstock.runs.collect:server_metrics",
    "penstock.runs.collect:gpu_telemetry",
    "penstock.runs.collect:network_latency",
    "penstock.runs.live_metrics:live_metrics",
)  # fmt: skip
"""Module and function, which is called with the `Settings` and the `Prepared` run."""


def companions(settings: Settings, prepared: Prepared) -> list[Companion]:
    made = (resolve_name(name)(settings, prepared) for name in COMPANIONS)
    return [companion for companion in made if companion is not None]
