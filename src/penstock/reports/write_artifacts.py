"""Write all artifacts of a run from its log, in one pass over the records."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from penstock.metrics.certificate import Certificate
from penstock.metrics.measure import Measures, measure, unfit_metrics
from penstock.metrics.summary import Summary, SummaryBuilder, TokenizerNote
from penstock.metrics.token_agreement import token_metrics, token_metrics_by_server
from penstock.metrics.token_counting import ClientCounter, Counter, LoadTokenizer, ServerCounter
from penstock.plural import counted
from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.reports.artifacts import Artifacts, replacing
from penstock.reports.check_inputs_json import check_inputs_json
from penstock.reports.console import console_text
from penstock.reports.inputs_json import OmittedSessions, write_inputs_json
from penstock.reports.records_jsonl import RecordWriter
from penstock.reports.sent_bodies import SentBodies
from penstock.reports.summary_csv import write_summary_csv
from penstock.reports.summary_json import write_summary_json

__all__ = ["write_artifacts"]

_BATCH_RECORDS = 512
_BATCH_STAMPS = 100_000
"""Limits of a batch, which is tokenized at once and held in memory: about 5 MB."""

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
) -> Summary:
    """Write a run's artifacts into `folder` and return its summary.

    The tokenizer is loaded only if there are texts to count. `certify` makes the certificate from the request counts, the
    bounds of the figures and the failed `extra_checks`.
    `expected` is the number of records for `progress`; the default is the header's request count.
    """
    header = log.header
    artifacts = Artifacts.of(folder, header)
    counter: Counter
    if header.server_token_count:
        counter = ServerCounter(per_chunk=header.per_chunk_usage)
    else:
        counter = ClientCounter(tokenizer, log, input_texts)
    with _scratch(log.folder) as scratch, contextlib.closing(SentBodies(log, scratch)) as sent:
        builder = SummaryBuilder(header, log.phases, scratch)
        broken_conversations = 0
        with _optional_file(artifacts.records) as file:
            writer = None if file is None else RecordWriter(file, header, log.phases, log.payloads)
            for record, measures in _measure_records(log, counter, progress, expected or header.requests or 0):
                builder.add(record, measures)
                sent.add(record)
                broken_conversations += _ended_early(record, log)
                if writer is not None:
                    writer.add(record, measures)
        sent.finish()
        summary = builder.summary(_tokenizer_note(counter))
        if header.server_token_count:
            summary.tokenizer = _server_note(summary)
        agreement = summary.token_agreement
        extra_checks = []
        if agreement is not None and not agreement.agrees:
            agreement.by_client_count = token_metrics(summary.metrics)
            agreement.by_server_count = token_metrics_by_server(log, scratch)
            extra_checks = [(1, sentence) for sentence in agreement.sentences()]
        summary.proof = sent.proof()
        summary.broken_conversations = broken_conversations
        if artifacts.inputs is not None:
            summary.note = _write_inputs(artifacts.inputs, sent, log)
        else:
            summary.note = "The inputs.json in this folder is the file that was replayed; it was left unchanged."
    summary.was_cancelled = was_cancelled
    summary.incomplete_reason = incomplete_reason
    summary.torn_bytes = log.torn_bytes
    summary.torn_requests = log.torn_requests
    summary.skipped_bytes = log.skipped_bytes
    summary.skipped_places = log.skipped_places
    summary.certificate = (
        None if certify is None else certify(builder.request_counts(), summary.bounds, extra_checks=extra_checks)
    )
    _write_summary(artifacts, summary, log, show_http)
    return summary


class _KeepFile(Exception):
    """Discards the new version of a file."""


def _write_inputs(path: str, sent: SentBodies, log: RunLog) -> str | None:
    """Write inputs.json, unless that would omit sessions that the existing file contains. Return the note about it."""
    try:
        with replacing(path) as inputs:
            note = _inputs_note(write_inputs_json(inputs, sent.sequences(), log))
            if note is not None and os.path.exists(path) and check_inputs_json(path, log) is None:
                raise _KeepFile
            return note
    except _KeepFile:
        return "inputs.json was kept: it contains bodies that cannot be read from their source any more."


def _inputs_note(omitted: OmittedSessions) -> str | None:
    reasons = (
        (omitted.changed, "the file with their payloads has changed since they were sent"),
        (omitted.unwritten, "a worker was killed before it had written their payloads"),
    )
    notes = [f"inputs.json omits {counted(count, 'session')}: {reason}." for count, reason in reasons if count]
    return " ".join(notes) or None


def _ended_early(record: Record, log: RunLog) -> bool:
    """Return whether this failed turn ended its conversation before the last turn."""
    failed = record.built is not None and record.failure is not None and not record.cancelled
    return failed and record.turn + 1 < len(log.payloads.turns(record.conversation))


@contextlib.contextmanager
def _scratch(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="columns-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _optional_file(path: str | None) -> contextlib.AbstractContextManager[IO[bytes] | None]:
    return contextlib.nullcontext() if path is None else replacing(path)


def _measure_records(
    log: RunLog, counter: Counter, progress: ProgressCallback | None, expected: int
) -> Iterator[tuple[Record, Measures]]:
    done = 0
    unfit = unfit_metrics(log.header)
    for batch in _batches(log.records()):
        for record, counts in zip(batch, counter.count(batch), strict=True):
            yield record, measure(record, counts, unfit)
        done += len(batch)
        if progress is not None:
            # The header's request count excludes the warmup, so more records than expected may arrive.
            progress(done, max(done, expected) if expected else 0)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    stamps = 0
    for record in records:
        batch.append(record)
        stamps += len(record.stamps)
        if len(batch) >= _BATCH_RECORDS or stamps >= _BATCH_STAMPS:
            yield batch
            batch, stamps = [], 0
    if batch:
        yield batch


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


def _write_summary(artifacts: Artifacts, summary: Summary, log: RunLog, show_http: bool) -> None:
    with replacing(artifacts.summary_csv) as f:
        write_summary_csv(f, summary)
    with replacing(artifacts.console) as f:
        f.write(console_text(summary, show_http=show_http).encode())
    # Write the JSON last: a program that waits for it expects the other files to be complete.
    with replacing(artifacts.summary_json) as f:
        write_summary_json(f, summary, log.header)
