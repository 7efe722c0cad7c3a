"""Records made by hand."""

from collections.abc import Sequence
from typing import Any

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import Measures, TokenCounts
from penstock.records.record import Record

MS = 1_000_000


def measure(record: Record, counts: TokenCounts, unfit: frozenset[str] = frozenset()) -> Measures:
    """Return the metrics of one record."""
    return measure_batch(Batch((record,)), (counts,), unfit).rows[0]


def make_record(*, at: float = 0, **changes: Any) -> Record:
    """Return a streamed reply: five tokens 50, 60, 75, 80 and 100 ms after `start`. `at` (ms) shifts all its times."""
    offset = int(at * MS)
    fields: dict[str, Any] = {
        "phase": 0,
        "number": 0,
        "conversation": 0,
        "turn": 0,
        "payload": 0,
        "worker": 0,
        "url": 0,
        "request_id": "request",
        "correlation_id": "correlation",
        "intended": offset,
        "issued": offset + 2 * MS,
        "start": offset + 5 * MS,
        "end": offset + 110 * MS,
        "sent": offset + 6 * MS,
        "first_byte": offset + 45 * MS,
        "status": 200,
        "streamed": True,
        "bytes_sent": 512,
        "bytes_received": 4096,
        "reads": 7,
        "stamps": [50 * MS, 60 * MS, 75 * MS, 80 * MS, 100 * MS],
        "pieces": [1, 1, 1, 1, 1],
        "first_output": 0,
        "outputs": ["one two three four five"],
        "head_outputs": "one",
        "finish": ["stop"],
    }
    return Record(**(fields | changes))


def with_values(record: Record, values: dict[str, float]) -> tuple[Batch, MeasureTable]:
    """Return a batch of one request, and its metrics."""
    return Batch((record,)), MeasureTable.of((Measures(values, {}),))


def measured(records: Sequence[Record], counts: Sequence[TokenCounts]) -> tuple[Batch, MeasureTable]:
    """Return a batch with its metrics, for these token counts."""
    batch = Batch(records)
    return batch, measure_batch(batch, counts)
