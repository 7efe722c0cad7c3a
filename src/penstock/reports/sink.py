"""The interface of a sink, which writes one artifact of a run."""

from __future__ import annotations

from typing import IO, Any, NamedTuple

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.metric import Measures
from penstock.metrics.summary import Summary
from penstock.records.bodies import BodyReader
from penstock.records.header import RunHeader
from penstock.records.log import LoggedPhase, RunLog, Sample
from penstock.records.record import Record
from penstock.reports.artifacts import Artifacts, Draft, SectionDraft
from penstock.scratch import Scratch, Spool


class ReportContext(NamedTuple):
    """What the sinks of a report share."""

    log: RunLog
    bodies: BodyReader
    header: RunHeader
    artifacts: Artifacts
    scratch: Scratch


class Sink:
    """Writes one artifact from the records of a run. Override the methods that the artifact needs.

    The order of the calls is `begin` for each phase, `add_batch` for the records, `add_sample` for each sample, `finish`,
    `close`. After an error, only `close` follows. The existing file must stay as it is until `finish`.

    The records of a large log are read in sections by several processes. Each section has a sink of its own without a path,
    whose calls are `begin`, `add_batch`, `section_part` and `close`. The sink of the run gets `add_part` for each section in
    their order, instead of `add_batch`.
    """

    def __init__(self, context: ReportContext, path: str) -> None:
        self.context = context
        self.path = path

    @classmethod
    def takes_records(cls) -> bool:
        return cls.add is not Sink.add or cls.add_batch is not Sink.add_batch

    def begin(self, phase: LoggedPhase, /) -> None:
        """Take the next phase of the run. A record refers to it by its `index`."""

    def add_batch(self, batch: Batch, table: MeasureTable, /) -> None:
        """Take records of one phase and their metrics. Records are in the order of the log and include the warmup."""
        if type(self).add is not Sink.add:
            for record, measures in zip(batch.records, table.rows, strict=True):
                self.add(record, measures)

    def add(self, record: Record, measures: Measures, /) -> None:
        """Take a record and its metrics, in a sink that does not override `add_batch`."""

    def section_part(self) -> Any:
        """Return what `add_part` of the run's sink needs. It is pickled."""
        raise NotImplementedError

    def add_part(self, part: Any, /) -> None:
        """Take what the sink of the next section returned."""
        raise NotImplementedError

    def add_sample(self, sample: Sample, /) -> None:
        """Take a telemetry sample from the log, in the order of time."""

    def finish(self, summary: Summary, /) -> None:
        """Write the file. A sink may set `summary.note`, which the sinks after it show."""

    def close(self) -> None:
        """Release files and other resources, and delete unfinished output."""


class DraftSink(Sink):
    """A sink that writes its file while it takes the records."""

    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._draft = Draft(path) if path else SectionDraft(context.scratch)

    @property
    def file(self) -> IO[bytes]:
        return self._draft.file

    def section_part(self) -> Spool:
        assert isinstance(self._draft, SectionDraft)
        return self._draft.finish()

    def add_part(self, part: Spool) -> None:
        for chunk in part.chunks():
            self.file.write(chunk)

    def finish(self, _summary: Summary) -> None:
        assert isinstance(self._draft, Draft)
        self._draft.commit()

    def close(self) -> None:
        if isinstance(self._draft, Draft):
            self._draft.discard()
