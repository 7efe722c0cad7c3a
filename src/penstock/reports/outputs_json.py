"""Write `outputs.json`: the text of each successful reply of the profiling phase, with its main metrics."""

from __future__ import annotations

import orjson

from penstock.metrics.metric import Measures
from penstock.metrics.summary import Summary
from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.sink import DraftSink, ReportContext
from penstock.scratch import Spool

_BEGIN = b'{\n  "schema_version": "1.0",\n  "data": ['
_METRICS = (
    "input_sequence_length",
    "output_token_count",
    "output_sequence_length",
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
)


class OutputsJson(DraftSink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        if path:
            self.file.write(_BEGIN)
        self._is_empty = True
        self._profiling: set[int] = set()

    def begin(self, phase: LoggedPhase) -> None:
        if phase.kind == "profiling":
            self._profiling.add(phase.index)

    def add(self, record: Record, measures: Measures) -> None:
        if record.phase not in self._profiling or record.failure is not None or record.cancelled:
            return
        start = self.context.header.epoch_wall_ns + record.start
        entry = {
            "session_num": record.number,
            "conversation_id": self.context.bodies.payloads.session(record.payload),
            "turn_index": record.turn,
            "x_request_id": record.request_id,
            "request_start_ns": start,
            "request_end_ns": start + record.latency_ns,
            "metrics": {tag: measures.values[tag] for tag in _METRICS if tag in measures.values},
            "response_text": "\n".join(record.outputs),
        }
        # JSON escapes the line ends of texts, so those of the encoded entry are between its lines.
        lines = orjson.dumps(entry, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n    ")
        self._separate()
        self.file.write(b"\n    " + lines)

    def _separate(self) -> None:
        if not self._is_empty:
            self.file.write(b",")
        self._is_empty = False

    def add_part(self, part: Spool) -> None:
        if part.size:
            self._separate()
            super().add_part(part)

    def finish(self, summary: Summary) -> None:
        self.file.write(b"\n  ]\n}\n")
        super().finish(summary)
