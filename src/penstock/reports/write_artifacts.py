"""Write all artifacts of a run from its log, in one pass over the records."""

from __future__ import annotations

import contextlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from penstock.metrics.certificate import Certificate
from penstock.metrics.groups.network import network_metrics
from penstock.metrics.groups.power import power_metrics
from penstock.metrics.summary import Summary, SummaryBuilder, TokenizerNote
from penstock.metrics.token_agreement import token_metrics, token_metrics_by_server
from penstock.metrics.token_counting import ClientCounter, Counter, LoadTokenizer, ServerCounter
from penstock.records.bodies import BodyReader
from penstock.records.log import UNTIL, RunLog
from penstock.records.read_sections import Advance, most_processes, read_sections
from penstock.records.section import Section
from penstock.reports import sink_table
from penstock.reports.artifacts import Artifacts
from penstock.reports.record_sinks import RecordSinks, measure_batches
from penstock.reports.sink import ReportContext, Sink
from penstock.scratch import Scratch
from penstock.telemetry.gpu import GpuTelemetryBuilder
from penstock.telemetry.network import NetworkLatencyBuilder
from penstock.telemetry.server_metrics import ServerMetricsBuilder, window_of

__all__ = ["ProgressCallback", "write_artifacts"]

ProgressCallback = Callable[[int, int], None]
"""Called with the number of records done and the number expected; 0 if that is unknown."""


def write_artifacts(
    log: RunLog,
    folder: str,
    tokenizer: LoadTokenizer | None,
    input_texts: Callable[[bytes], list[str]],
    certify: Callable[..., Certificate] | None = None,
    *,
    was_cancelled: bool = False,
    incomplete_reason: str | None = None,
    progress: ProgressCallback | None = None,
    expected: int | None = None,
    show_http: bool = False,
    show_timeline: bool = False,
) -> Summary:
    """Write a run's artifacts into `folder` and return its summary.

    The tokenizer is loaded only if there are texts to count. `certify` makes the certificate from the request counts, the
    bounds of the figures and the failed `extra_checks`.
    `expected` is the number of records for `progress`; the default is the header's request count.
    """
    header = log.header
    with contextlib.ExitStack() as stack:
        bodies = stack.enter_context(BodyReader(log))
        counter = _counter(log, bodies, tokenizer, input_texts)
        os.makedirs(folder, exist_ok=True)
        scratch = stack.enter_context(Scratch(folder))
        context = ReportContext(log, bodies, header, Artifacts.of(folder, header), scratch, show_http, show_timeline)
        sinks = stack.enter_context(contextlib.closing(RecordSinks(log, _report_sinks(context))))
        builder = SummaryBuilder(log, bodies.payloads, scratch)
        _read_log(builder, sinks, counter, context, _advance(progress, expected or header.requests or 0))
        summary = _summarize(builder, counter, context, certify)
        window = window_of(log.phases, log.covered_phases, summary.end_ns - header.epoch_wall_ns)
        server_metrics = ServerMetricsBuilder(window, header.epoch_wall_ns)
        gpu_telemetry = GpuTelemetryBuilder(window)
        asked = header.settings.telemetry
        network = NetworkLatencyBuilder(window.stop, asked.network_ms, probed=asked.probe_network)
        for sample in log.samples():
            server_metrics.add(sample)
            gpu_telemetry.add(sample)
            network.add(sample)
        for decision in log.decisions(UNTIL):
            summary.until = decision.values
        summary.server_metrics = server_metrics.result()
        summary.gpu_telemetry = gpu_telemetry.result()
        if summary.gpu_telemetry is not None:
            summary.metrics |= power_metrics(summary.metrics, summary.gpu_telemetry)
        summary.network = network.result()
        if summary.network is not None:
            summary.metrics |= network_metrics(summary.metrics, summary.network)
        summary.was_cancelled = was_cancelled
        summary.incomplete_reason = incomplete_reason
        sinks.finish(summary)
    return summary


def _counter(
    log: RunLog, bodies: BodyReader, tokenizer: LoadTokenizer | None, input_texts: Callable[[bytes], list[str]]
) -> Counter:
    endpoint = log.header.settings.endpoint
    if endpoint.server_token_count:
        return ServerCounter(per_chunk=endpoint.per_chunk_usage)
    return ClientCounter(tokenizer, log.header, bodies, input_texts)


def _advance(progress: ProgressCallback | None, expected: int) -> Advance:
    done = 0

    def advance(records: int) -> None:
        nonlocal done
        done += records
        if progress is not None:
            # The header's request count excludes the warmup, so more records than expected may arrive.
            progress(done, max(done, expected) if expected else 0)

    return advance


def _sinks(context: ReportContext) -> Iterator[tuple[str, type[Sink]]]:
    for entry in sink_table.SINKS:
        if entry.name in context.artifacts.paths:
            yield entry.name, pkgutil.resolve_name(entry.sink)


def _report_sinks(context: ReportContext) -> dict[str, Sink]:
    return {name: sink(context, context.artifacts.paths[name]) for name, sink in _sinks(context)}


def _section_sinks(context: ReportContext) -> dict[str, Sink]:
    """Return sinks for the artifacts that are made from records, without paths."""
    return {
        name: sink(context, "")
        for name, sink in _sinks(context)
        if sink.add is not Sink.add or sink.add_batch is not Sink.add_batch
    }


def _read_log(
    builder: SummaryBuilder, sinks: RecordSinks, counter: Counter, context: ReportContext, advance: Advance
) -> None:
    log = context.log
    sections = log.sections()
    if len(sections) == 1:
        _add_records(builder, sinks, counter, log, sections[0], advance)
        return
    counter.count(next(sections[0].batches(), []))  # loads the tokenizer if there are texts, once for all processes

    def read(part: tuple[Section, Scratch], advance: Advance) -> tuple[SummaryBuilder, dict[str, Any]]:
        section, scratch = part
        own = SummaryBuilder(log, context.bodies.payloads, scratch)
        if isinstance(counter, ClientCounter):
            counter.threads = 1
        with contextlib.closing(RecordSinks(log, _section_sinks(context._replace(scratch=scratch)))) as of_section:
            _add_records(own, of_section, counter, log, section, advance)
            return own, of_section.section_parts()

    parts_to_read = [(section, context.scratch.another()) for section in sections]
    for own, parts in read_sections(parts_to_read, read, advance, processes=most_processes()):
        builder.merge(own)
        sinks.add_section(parts)


def _add_records(
    builder: SummaryBuilder, sinks: RecordSinks, counter: Counter, log: RunLog, section: Section, advance: Advance
) -> None:
    for batch, table in measure_batches(log.header, section, counter, advance, builder.damage):
        builder.add(batch, table)
        sinks.add(batch, table)


def _summarize(
    builder: SummaryBuilder, counter: Counter, context: ReportContext, certify: Callable[..., Certificate] | None
) -> Summary:
    summary = builder.summary(_tokenizer_note(counter))
    if isinstance(counter, ServerCounter):
        summary.tokenizer = _server_note(summary)
    if context.artifacts.inputs is None:
        summary.note = "The inputs.json in this folder is the file that was replayed; it was left unchanged."
    extra_checks = [(1, sentence) for sentence in _count_by_both(summary, context.log, context.scratch)]
    if certify is not None:
        summary.certificate = certify(builder.request_counts(), summary.bounds, extra_checks=extra_checks)
    return summary


def _count_by_both(summary: Summary, log: RunLog, scratch: Scratch) -> list[str]:
    """If the token counts of client and server do not agree, add the token metrics by both, and return sentences about it."""
    agreement = summary.token_agreement
    if agreement is None or agreement.agrees:
        return []
    agreement.by_client_count = token_metrics(summary.metrics)
    agreement.by_server_count = token_metrics_by_server(log, scratch, most_processes())
    return list(agreement.sentences())


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
