"""The companions of a run. The modules of those that a run does not need are not imported, which would delay its start."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from penstock.runs.companion import Companion
from penstock.runs.prepare import Prepared
from penstock.settings.schema import Settings

COMPANIONS: dict[str, Callable[[Settings], bool]] = {
    "penstock.runs.server_calls:ServerCalls": lambda settings: (
        settings.server_calls.reset_cache or settings.server_calls.profiler
    ),
    "penstock.runs.collect:server_metrics": lambda settings: settings.telemetry.server_metrics is not None,
    "penstock.runs.collect:gpu_telemetry": lambda settings: settings.telemetry.gpu is not None,
    "penstock.runs.collect:network_latency": lambda settings: settings.telemetry.probe_network,
    "penstock.runs.live_metrics:live_metrics": lambda settings: settings.telemetry.metrics_port is not None,
    "penstock.runs.otel:otel": lambda settings: settings.exports.otel_url is not None,
}
"""Module and name of a function that is called with the `Settings` and the `Prepared` run, and whether settings need it."""


def companions(settings: Settings, prepared: Prepared) -> list[Companion]:
    found: list[Companion] = [] if prepared.data.input_files is None else [prepared.data.input_files]
    return found + [resolve_name(name)(settings, prepared) for name, need in COMPANIONS.items() if need(settings)]
