"""The base of files with one JSON line for each of some samples. Without such samples, the file is not written."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.metrics.summary import Summary
from penstock.reports.artifacts import Draft
from penstock.reports.sink import ReportContext, Sink


class SampleLines(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._draft: Draft | None = None

    def write_line(self, fields: dict[str, Any]) -> None:
        if self._draft is None:
            self._draft = Draft(self.path)
        self._draft.file.write(msgspec.json.encode(fields) + b"\n")

    def finish(self, summary: Summary) -> None:
        del summary
        if self._draft is not None:
            self._draft.commit()

    def close(self) -> None:
        if self._draft is not None:
            self._draft.discard()
