"""The parts of the catalogue: a metric, and a group of metrics with the functions that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from penstock.metrics.statistics import Stats, Values
from penstock.records.record import Record
from penstock.table_rows import table_rows

if TYPE_CHECKING:
    from penstock.metrics.batch import Batch, CountColumns, MeasureTable

Kind = Literal["record", "list", "run"]
Table = Literal["main", "http", "effective", "active", "power"]
Tokens = Literal["input_tokens", "output_tokens"]
"""Fields of `settings.endpoint_types.Declaration`."""


class Metric(msgspec.Struct, frozen=True):
    tag: str
    header: str
    unit: str
    kind: Kind
    note: str
    table: Table | None = None
    """The console table that shows the metric; None hides it."""
    order: int = 0
    larger_is_better: bool = False
    needs: Tokens | None = None
    """The metric fits only endpoints that declare such tokens. Metrics of kind `run` follow from those of the requests."""
    streamed: bool = False
    """Only requests with a streamed reply have the metric."""


def per_request(
    tag: str,
    header: str,
    unit: str,
    note: str,
    *,
    order: int = 0,
    larger: bool = False,
    table: Table = "main",
    needs: Tokens | None = None,
    streamed: bool = False,
) -> Metric:
    """Return a metric of kind `record`. Without an `order`, the console does not show it."""
    return Metric(tag, header, unit, "record", note, table if order else None, order, larger, needs, streamed)


def per_run(tag: str, header: str, unit: str, note: str, **options: Any) -> Metric:
    """Return a metric of kind `run`, with the options of `per_request`."""
    return msgspec.structs.replace(per_request(tag, header, unit, note, **options), kind="run")


def read_metrics(table: str, kind: Kind = "record", console: Table = "main") -> tuple[Metric, ...]:
    """Read a table of metrics: tag, header, unit and the other fields of `Metric`, and the note on the lines below.

    `larger` stands for `larger_is_better=True`. The console shows a metric with an order, in the table `console`.
    """
    return tuple(_read_metric(cells, note, kind, console) for cells, note in table_rows(table))


def _read_metric(cells: list[str], note: str, kind: Kind, console: Table) -> Metric:
    tag, header, unit, *rest = cells
    fields = dict(word.partition("=")[::2] for word in " ".join(rest).split())
    order = int(fields.get("order", 0))
    return Metric(
        tag,
        header,
        unit,
        cast(Kind, fields.get("kind", kind)),
        note,
        console if order else None,
        order,
        "larger" in fields,
        cast(Tokens | None, fields.get("needs")),
        "streamed" in fields,
    )


def label(metric: Metric) -> str:
    return f"{metric.header} ({metric.unit})"


class Measures(msgspec.Struct, frozen=True):
    values: dict[str, float]
    """Values by tag, for metrics of kind `record`."""
    lists: dict[str, Values]
    """Values by tag, for metrics of kind `list`."""


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """Token counts of a request; None is unknown."""

    input: int | None = None
    output: int | None = None
    """Output tokens without reasoning."""
    reasoning: int | None = None
    head: int | None = None
    """Tokens that arrived with the first stamp. The server's count is known only with per-chunk usage."""
    by_server: bool = False

    @property
    def total(self) -> int | None:
        """The output sequence length."""
        return None if self.output is None else self.output + (self.reasoning or 0)


UNCOUNTED = TokenCounts()


class PhaseFigures(NamedTuple):
    """What a phase has before its metrics of kind `run` are computed."""

    stats: Mapping[str, Stats]
    """Statistics of the metrics of its requests."""
    counts: Mapping[str, float]
    """Metrics that count requests or stamps."""
    succeeded: int
    duration_s: float | None
    """From the first start to the last end of all requests; None if there were none."""
    scheduled: bool
    """True if requests had recorded send times."""

    def total(self, tag: str) -> float | None:
        """Return the sum of a metric over the requests; None if no request has it."""
        stats = self.stats.get(tag)
        return None if stats is None else stats.sum


class MetricGroup(NamedTuple):
    """Metrics that are computed together. A metric whose value none of the functions gives is computed by `PhaseStats`,
    or from telemetry."""

    metrics: tuple[Metric, ...]
    measure: Callable[[Record, TokenCounts, Measures], None] | None = None
    """Add the values of one successful request, in the order of `metrics`."""
    measure_batch: Callable[[Batch, CountColumns, MeasureTable], None] | None = None
    """Add the values of many requests at once, in the order of `metrics`: ten times as fast as `measure`."""
    summarize: Callable[[PhaseFigures], Mapping[str, float]] | None = None
    """Return the values of kind `run` of a phase."""
