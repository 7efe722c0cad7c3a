"""Reads the records of a run while its workers write them.

Of the requests in flight at the same time, the short ones end first. Figures of all requests that have ended are therefore too
low: with 200 in flight, nearly all intervals of the first 100 that end miss the mean latency. A request is settled when all
that its worker issued before it have ended, and only settled ones are representative.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from penstock import frames
from penstock.metrics.batch import Batch
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.records.frame_kinds import RECORD
from penstock.records.record import Record
from penstock.workers.messages import Progress


class LogTail:
    def __init__(self, folder: str, before: Sequence[Progress] = ()) -> None:
        """`before` are the messages of workers that have written all their records so far, which are not read."""
        self._folder = folder
        self._decode = msgspec.msgpack.Decoder(Record).decode
        self._positions: dict[str, int] = {}
        self._read: Counter[int] = Counter()
        self._messages: dict[int, Progress] = {}
        """The message of each worker whose requests are not all in the log yet."""
        self._settled: dict[int, int] = {}
        for message in before:
            if message.report is not None:
                self._read[message.report.worker] = message.ended
                path = os.path.join(folder, f"worker-{message.report.worker}.log")
                self._positions[path] = os.path.getsize(path)

    def read(self, workers: Sequence[Progress] = ()) -> list[Record]:
        """Return the records that were written since the last call. `workers` are the newest messages of the workers."""
        for message in workers:
            if message.report is not None:
                self._messages.setdefault(message.report.worker, message)
        records = list(self.written())
        self._read.update(record.worker for record in records)
        for worker, message in list(self._messages.items()):
            # The log has the requests in the order of their ends, and later than the message.
            if self._read[worker] >= message.ended:
                self._settled[worker] = self._messages.pop(worker).oldest
        return records

    def is_settled(self, worker: int, issued: int) -> bool:
        """Return whether all requests that a worker issued up to a time have ended."""
        return issued < self._settled.get(worker, 0)

    def written(self) -> Iterator[Record]:
        """Yield the records that were written since the last call, which must have been exhausted."""
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
