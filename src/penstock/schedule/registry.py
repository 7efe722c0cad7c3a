"""The arrival process for a name of `settings.arrival_patterns`."""

from __future__ import annotations

from importlib import import_module

from penstock.schedule.arrivals import Arrivals
from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS

__all__ = ["arrival_process"]


def arrival_process(name: str, rate: float, **options: float) -> Arrivals:
    module, _, attribute = ARRIVAL_PATTERNS[name].partition(":")
    process: Arrivals = getattr(import_module(module), attribute)(rate, **options)
    return process
