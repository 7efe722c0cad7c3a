"""Write `report.html`: one file with everything on it, which opens without a network."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.summary import Summary
from penstock.records.log import LoggedPhase, Sample
from penstock.reports.artifacts import replacing
from penstock.reports.request_columns import RequestColumns
from penstock.reports.run_page import run_document
from penstock.reports.sink import ReportContext, Sink
from penstock.reports.telemetry_charts import TelemetryColumns

PAGE_NAME = "report.html"
_DATA_BEGIN = b'<script type="application/json" id="data">'
_DATA_END = b"</script>"
_PARTS = {
    "{{uplot.css}}": "uplot.css",
    "{{page.css}}": "page.css",
    "{{uplot.js}}": "uplot.js",
    "{{page.js}}": "page.js",
}


class ReportHtml(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._columns = RequestColumns(context.scratch)
        self._telemetry = TelemetryColumns()
        self._phases: list[LoggedPhase] = []
        self._profiling: set[int] = set()

    def begin(self, phase: LoggedPhase) -> None:
        self._phases.append(phase)
        if phase.kind == "profiling":
            self._profiling.add(phase.index)

    def add_batch(self, batch: Batch, table: MeasureTable) -> None:
        self._columns.add(batch, table, batch.records[0].phase in self._profiling)

    def section_part(self) -> RequestColumns:
        return self._columns

    def add_part(self, part: RequestColumns) -> None:
        self._columns.merge(part)

    def add_sample(self, sample: Sample) -> None:
        self._telemetry.add(sample)

    def finish(self, summary: Summary) -> None:
        document = run_document(summary, self.context, self._phases, self._columns, self._telemetry)
        write_page(self.path, document)


def write_page(path: str, document: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(page(document))


def page(document: dict[str, Any]) -> bytes:
    """Return the page that shows this document. Its `title` becomes that of the page."""
    data = msgspec.json.encode(document, enc_hook=str)
    # In a script element only `<` can end the data.
    data = data.replace(b"<", b"\\u003c")
    folder = files("penstock.reports") / "page"
    text = (folder / "page.html").read_text(encoding="utf-8")
    for name, file in _PARTS.items():
        text = text.replace(name, (folder / file).read_text(encoding="utf-8"))
    text = text.replace("{{title}}", escape(str(document["title"])))
    before, _, after = text.encode().partition(b"{{data}}")
    return before + data + after


def read_page(path: str) -> dict[str, Any]:
    """Return the document of a page. Raise ValueError if the file is no such page."""
    with open(path, "rb") as file:
        content = file.read()
    _, found, rest = content.partition(_DATA_BEGIN)
    if not found:
        raise ValueError(f"{path} has no data of a run.")
    document: dict[str, Any] = msgspec.json.decode(rest.partition(_DATA_END)[0])
    return document
