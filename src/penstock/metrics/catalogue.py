"""The catalogue of metrics: tag, name, unit, console table, formula and limits of each.

To add a metric, define a `MetricGroup` in a module of its own and list it here, or in an entry point of another package.

Tags, names and units are AIPerf's where AIPerf has the metric. Metrics appear in the order of the entries in the
per-request file and, after the keys whose order AIPerf fixes, in the summary.

In the notes, `start` is the time just before the request's first byte is handed to the socket. `stamp[i]` is the time at
which the i-th piece of content arrived; pieces that arrive together share one stamp. `first` and `last` are the first and
the last stamp, and `end` is the arrival of the reply's last byte.

A metric of kind `record` has one value per request, `list` has several, `run` has one per phase. Record and list metrics
cover the successful requests of the phase.
"""

from __future__ import annotations

from pkgutil import resolve_name

from penstock.errors import UserError
from penstock.metrics.metric import Metric, MetricGroup, Table
from penstock.plugins import METRICS as PLUGIN_GROUP
from penstock.plugins import load_plugins

_BUILTIN: tuple[MetricGroup, ...] = tuple(
    map(
        resolve_name,
        (
            "penstock.metrics.groups.times:GROUP",
            "penstock.metrics.groups.lengths:GROUP",
            "penstock.metrics.groups.usage:GROUP",
            "penstock.metrics.groups.media:GROUP",
            "penstock.metrics.groups.http:GROUP",
            "penstock.metrics.groups.failures:GROUP",
            "penstock.metrics.groups.throughput:GROUP",
            "penstock.metrics.groups.timeline:GROUP",
            "penstock.metrics.groups.goodput:GROUP",
            "penstock.metrics.groups.counts:GROUP",
            "penstock.metrics.groups.replay_lag:GROUP",
            "penstock.metrics.groups.totals:GROUP",
            "penstock.metrics.groups.error_adjusted:GROUP",
            "penstock.metrics.groups.power:GROUP",
            "penstock.metrics.groups.network:GROUP",
            "penstock.metrics.groups.stalls:GROUP",
        ),
    )
)


def _with_plugins(groups: tuple[MetricGroup, ...]) -> tuple[MetricGroup, ...]:
    """Add the groups of installed packages. Their tags must be new."""
    tags = {metric.tag for group in groups for metric in group.metrics}
    for name, added in load_plugins(PLUGIN_GROUP, MetricGroup, "metric group"):
        for metric in added.metrics:
            if metric.tag in tags:
                raise UserError(
                    f"The metric group '{name}' of an installed package has a metric {metric.tag}, which exists."
                )
            tags.add(metric.tag)
        groups += (added,)
    return groups


GROUPS = _with_plugins(_BUILTIN)
CATALOGUE: dict[str, Metric] = {metric.tag: metric for group in GROUPS for metric in group.metrics}


def in_table(table: Table) -> list[Metric]:
    """Return the metrics of a console table, in display order."""
    return sorted((m for m in CATALOGUE.values() if m.table == table), key=lambda m: m.order)
