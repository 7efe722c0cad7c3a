"""Write all artifacts of a run or of a point from its log, in one pass over the records."""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.metrics.batch import Batch
from penstock.metrics.certificate import RequestCounts
from penstock.metrics.groups.network import network_metrics
from penstock.metrics.groups.power import power_metrics
from penstock.metrics.measure import measure_batch, unfit_metrics
from penstock.metrics.overload import Overload
from penstock.metrics.summary import Summary, SummaryBuilder, TokenizerNote
from penstock.metrics.token_agreement import token_metrics, token_metrics_by_server
from penstock.metrics.token_counting import ClientCounter, Counter, ServerCounter
from penstock.records.bodies import BodyReader
from penstock.records.log import OVERLOAD, UNTIL, RunLog
from penstock.records.read_sections import Advance, read_sections
from penstock.records.section import Section
from penstock.reports import sink_table
from penstock.reports.artifacts import Artifacts
from penstock.reports.sink import ReportContext, Sink
from penstock.scratch import Scratch
from penstock.telemetry.gpu import GpuTelemetryBuilder
from penstock.telemetry.network import NetworkLatencyBuilder
from penstock.telemetry.server_metrics import READINGS, ServerMetricsBuilder, window_of

ProgressCallback = Callable[[int, int], None]
"""Called with the number of records done and the number expected; 0 if that is unknown."""
_Sinks = dict[str, Sink]


class ArtifactWriter:
    """Writes artifacts. First call `summarize`, then complete the summary, then call `finish`."""

    def __init__(self, log: RunLog, folder: str, processes: int = 1) -> None:
        """With one process, nothing is forked, and this process stays as it is."""
        self._stack = contextlib.ExitStack()
        self._processes = processes
        with contextlib.ExitStack() as stack:
            os.makedirs(folder, exist_ok=True)
            scratch = stack.enter_context(Scratch(folder))
            self.bodies = stack.enter_context(BodyReader(log))
            self.artifacts = Artifacts.of(folder, log.header)
            self._context = ReportContext(log, self.bodies, log.header, self.artifacts, scratch)
            sinks = ((name, kind(self._context, self.artifacts.paths[name])) for name, kind in self._kinds())
            self._sinks = stack.enter_context(_begun(log, sinks))
            self._stack = stack.pop_all()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kinds(self) -> Iterator[tuple[str, type[Sink]]]:
        for entry in sink_table.SINKS:
            if entry.name in self.artifacts.paths:
                yield entry.name, pkgutil.resolve_name(entry.sink)

    def summarize(self, counter: Counter, progress: ProgressCallback | None = None) -> tuple[Summary, RequestCounts]:
        """Read the records. Return the summary, without a certificate and with nothing about the end of the run, and the counts
        for the certificate."""
        context, log = self._context, self._context.log
        builder = SummaryBuilder(log, self.bodies.payloads, context.scratch)
        self._read(builder, counter, _advance(progress, sum(phase.requests or 0 for phase in log.covered_phases)))
        summary = builder.summary(_tokenizer_note(counter), processes=self._processes)
        if isinstance(counter, ServerCounter):
            summary.tokenizer = _server_note(summary)
        if self.artifacts.inputs is None:
            summary.note = "The inputs.json in this folder is the file that was replayed; it was left unchanged."
        agreement = summary.token_agreement
        if agreement is not None and not agreement.agrees:
            agreement.by_client_count = token_metrics(summary.metrics)
            agreement.by_server_count = token_metrics_by_server(log, context.scratch, self._processes)
        self._add_telemetry(summary)
        for decision in log.decisions(UNTIL):
            summary.until = decision.values
        for decision in log.decisions(OVERLOAD):
            summary.overload, summary.ended_by_overload = msgspec.convert(decision.values, Overload), True
        return summary, builder.request_counts()

    def _read(self, builder: SummaryBuilder, counter: Counter, advance: Advance) -> None:
        sections = self._context.log.sections()
        if len(sections) == 1:
            self._add_records(builder, self._sinks, counter, sections[0], advance)
            return
        counter.count(next(sections[0].batches(), []))  # loads the tokenizer if there are texts, once for all processes

        def read(part: tuple[Section, Scratch], advance: Advance) -> tuple[SummaryBuilder, dict[str, Any]]:
            section, scratch = part
            context = self._context._replace(scratch=scratch)
            own = SummaryBuilder(context.log, self.bodies.payloads, scratch)
            if isinstance(counter, ClientCounter) and self._processes > 1:
                counter.threads = 1
            made = ((name, kind(context, "")) for name, kind in self._kinds() if kind.takes_records())
            with _begun(context.log, made) as sinks:
                self._add_records(own, sinks, counter, section, advance)
                return own, {name: sink.section_part() for name, sink in sinks.items()}

        parts = [(section, self._context.scratch.another()) for section in sections]
        for own, of_sinks in read_sections(parts, read, advance, processes=self._processes):
            builder.merge(own)
            for name, part in of_sinks.items():
                self._sinks[name].add_part(part)

    def _add_records(
        self, builder: SummaryBuilder, sinks: _Sinks, counter: Counter, section: Section, advance: Advance
    ) -> None:
        header = self._context.header
        unfit, reader = unfit_metrics(header), header.settings.reader_rate
        with _without_collector() if self._processes > 1 else contextlib.nullcontext():
            for records in section.batches(builder.damage):
                batch = Batch(records)
                table = measure_batch(batch, counter.count(records), unfit, reader)
                builder.add(batch, table)
                for sink in sinks.values():
                    sink.add_batch(batch, table)
                advance(batch.size)

    def _add_telemetry(self, summary: Summary) -> None:
        log, epoch = self._context.log, self._context.header.epoch_wall_ns
        window = window_of(log.phases, log.covered_phases, summary.end_ns - epoch)
        server_metrics, gpu_telemetry = ServerMetricsBuilder(window, epoch), GpuTelemetryBuilder(window)
        readings = ServerMetricsBuilder(window, epoch, READINGS)
        asked = self._context.header.settings.telemetry
        network = NetworkLatencyBuilder(window.stop, asked.network_ms, probed=asked.probe_network)
        for sample in log.samples():
            server_metrics.add(sample)
            readings.add(sample)
            gpu_telemetry.add(sample)
            network.add(sample)
            for sink in self._sinks.values():
                sink.add_sample(sample)
        summary.server_metrics, summary.server_readings = server_metrics.result(), readings.result()
        summary.gpu_telemetry = gpu_telemetry.result()
        if summary.gpu_telemetry is not None:
            summary.metrics |= power_metrics(summary.metrics, summary.gpu_telemetry)
        summary.network = network.result()
        if summary.network is not None:
            summary.metrics |= network_metrics(summary.metrics, summary.network)

    def finish(self, summary: Summary) -> None:
        """Write the files."""
        for sink in self._sinks.values():
            sink.finish(summary)


@contextlib.contextmanager
def _begun(log: RunLog, made: Iterator[tuple[str, Sink]]) -> Iterator[_Sinks]:
    """Make sinks and let them begin the phases; close them at the end, also if another one cannot be made."""
    sinks: _Sinks = {}
    try:
        for name, sink in made:
            sinks[name] = sink
            for phase in log.covered_phases:
                sink.begin(phase)
        yield sinks
    finally:
        for sink in sinks.values():
            sink.close()


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Stop the collector of cycles, which finds none in records and takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _advance(progress: ProgressCallback | None, expected: int) -> Advance:
    done = 0

    def advance(records: int) -> None:
        nonlocal done
        done += records
        if progress is not None:
            # Workers can send more than a phase asks for, such as retries.
            progress(done, max(done, expected) if expected else 0)

    return advance


def _tokenizer_note(counter: Counter) -> TokenizerNote:
    if not isinstance(counter, ClientCounter):
        return TokenizerNote(None, None)
    tokenizer = counter.tokenizer
    if tokenizer is None:
        return TokenizerNote(None, None, counter.note)
    return TokenizerNote(tokenizer.name, tokenizer.source, counter.note)


def _server_note(summary: Summary) -> TokenizerNote:
    note = "Token counts come from the server."
    if missing := summary.without_usage:
        note += f" {missing:,} of {summary.succeeded:,} replies had no usage and have no token metrics."
    return TokenizerNote(None, None, note)
