"""Reads the records of a run while its workers write them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from penstock import frames
from penstock.metrics.batch import Batch
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.records.log import RECORD
from penstock.records.record import Record

__all__ = ["LogTail", "values_while_running"]


class LogTail:
    def __init__(self, folder: str) -> None:
        """Start at the current ends of the workers' files in the folder of a log."""
        self._folder = folder
        self._decode = msgspec.msgpack.Decoder(Record).decode
        self._positions = {path: os.path.getsize(path) for path in self._paths()}

    def read(self) -> Iterator[Record]:
        """Yield the records that were written since the last call."""
        for path in self._paths():
            with open(path, "rb") as file:
                position = file.seek(self._positions.get(path, 0))
                for kind, data in frames.Reader(file):
                    position += frames.HEAD.size + len(data)
                    if kind == RECORD:
                        yield self._decode(data)
            self._positions[path] = position

    def _paths(self) -> list[str]:
        names = [name for name in os.listdir(self._folder) if name.startswith("worker-") and name.endswith(".log")]
        return [os.path.join(self._folder, name) for name in sorted(names)]


def values_while_running(records: Sequence[Record]) -> list[dict[str, float] | None]:
    """Return the metrics of requests; None for those that failed. Tokens are those of the server's usage or, without it, pieces
    of content, because a tokenizer must not compete with the workers for the processor."""
    if not records:
        return []
    rows = measure_batch(Batch(records), list(map(_counts, records))).rows
    ended = (record.failure is None and not record.cancelled for record in records)
    return [row.values if succeeded else None for row, succeeded in zip(rows, ended, strict=True)]


def _counts(record: Record) -> TokenCounts:
    usage = record.usage
    output = sum(record.pieces) if usage is None or usage.completion is None else usage.completion
    return TokenCounts(output=output or None, by_server=usage is not None)
