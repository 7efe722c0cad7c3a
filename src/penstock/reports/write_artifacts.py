"""From the log to every artifact, in one pass over the records."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from penstock.metrics.certificate import Certificate, Measured
from penstock.metrics.measure import Measures, measure
from penstock.metrics.summary import Summary, SummaryBuilder, TokenizerNote
from penstock.metrics.token_counting import ClientCounter, Counter, LoadTokenizer, ServerCounter
from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.reports.artifacts import Artifacts, replacing
from penstock.reports.console import console_text
from penstock.reports.inputs_json import Lost, write_inputs_json
from penstock.reports.records_jsonl import RecordWriter
from penstock.reports.sent_bodies import SentBodies
from penstock.reports.summary_csv import write_summary_csv
from penstock.reports.summary_json import write_summary_json

__all__ = ["finish"]

_BATCH_RECORDS = 512
_BATCH_STAMPS = 100_000
"""A batch is what the tokenizer gets at once, and what is in memory at once: some 5 MB."""

Report = Callable[[int], None]
Judge = Callable[[Measured], Certificate]


def finish(
    log: RunLog,
    folder: str,
    tokenizer: LoadTokenizer | None,
    input_texts: Callable[[bytes], list[str]],
    judge: Judge | None = None,
    *,
    was_cancelled: bool = False,
    incomplete_reason: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    expected: int | None = None,
    show_http: bool = False,
) -> Summary:
    """Write a run's artifacts into `folder` and return what they say.

    `judge` gives the certificate, knowing what the run comes to. The tokenizer is loaded only when there is something to
    count. `progress` is told how many records are done and how many are expected: `expected`, or what the header asks for,
    or 0 when nobody knows.
    """
    header = log.header
    artifacts = Artifacts.of(folder, header)
    counter = ServerCounter() if header.server_token_count else ClientCounter(tokenizer, log, input_texts)
    report = _reporter(progress, header.requests if expected is None else expected)
    with _scratch(log.folder) as scratch, contextlib.closing(SentBodies(log, scratch)) as sent:
        builder = SummaryBuilder(header, scratch)
        broken = 0
        with _lines(artifacts.records) as file:
            writer = None if file is None else RecordWriter(file, header, log.payloads)
            for record, measures in _measured(log, counter, report):
                builder.add(record, measures)
                sent.add(record)
                broken += _ended_early(record, log)
                if writer is not None:
                    writer.add(record, measures)
        sent.finish()
        summary = builder.summary(_tokenizer_note(counter))
        if header.server_token_count:
            summary.tokenizer = _server_note(summary)
        summary.proof = sent.proof()
        summary.broken_conversations = broken
        if artifacts.inputs is not None:
            with replacing(artifacts.inputs) as inputs:
                summary.note = _inputs_note(write_inputs_json(inputs, sent.sequences(), log))
        else:
            summary.note = "The inputs.json in the folder is the file that was replayed, and was left as it is."
    summary.was_cancelled = was_cancelled
    summary.incomplete_reason = incomplete_reason
    summary.torn_bytes = log.torn_bytes
    summary.torn_requests = log.torn_requests
    summary.certificate = None if judge is None else judge(builder.measured())
    _write(artifacts, summary, log, show_http)
    return summary


def _inputs_note(lost: Lost) -> str | None:
    reasons = (
        (lost.changed, "the file with their payloads has changed since they were sent"),
        (lost.unwritten, "a worker was killed before it had written their payloads"),
    )
    notes = [f"inputs.json lacks {count:,} session(s): {reason}." for count, reason in reasons if count]
    return " ".join(notes) or None


def _ended_early(record: Record, log: RunLog) -> bool:
    """A turn without a good reply, when the next turn would have needed it."""
    needed = record.built is not None and record.failure is not None and not record.cancelled
    return needed and record.turn + 1 < len(log.payloads.turns(record.conversation))


@contextlib.contextmanager
def _scratch(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="columns-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lines(path: str | None) -> contextlib.AbstractContextManager[IO[bytes] | None]:
    return contextlib.nullcontext() if path is None else replacing(path)


def _measured(log: RunLog, counter: Counter, report: Report) -> Iterator[tuple[Record, Measures]]:
    done = 0
    for batch in _batches(log.records()):
        for record, counts in zip(batch, counter.count(batch), strict=True):
            yield record, measure(record, counts)
        done += len(batch)
        report(done)


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


def _reporter(progress: Callable[[int, int], None] | None, expected: int | None) -> Report:
    def report(done: int) -> None:
        if progress is not None:
            # A warmup is not in what the header asks for: the end moves when it is passed.
            progress(done, max(done, expected) if expected else 0)

    return report


def _tokenizer_note(counter: Counter) -> TokenizerNote:
    if not isinstance(counter, ClientCounter):
        return TokenizerNote(None, None)
    tokenizer = counter.tokenizer
    if tokenizer is None:
        return TokenizerNote(None, None, counter.note)
    return TokenizerNote(tokenizer.name, tokenizer.source, counter.note)


def _server_note(summary: Summary) -> TokenizerNote:
    note = "Token counts are the server's own."
    if missing := summary.without_usage:
        note += f" {missing:,} of {summary.succeeded:,} replies carried no usage: they have no token metrics."
    return TokenizerNote(None, None, note)


def _write(artifacts: Artifacts, summary: Summary, log: RunLog, show_http: bool) -> None:
    with replacing(artifacts.summary_csv) as f:
        write_summary_csv(f, summary)
    with replacing(artifacts.console) as f:
        f.write(console_text(summary, show_http=show_http).encode())
    # Last, because a reader that waits for this one expects the others beside it.
    with replacing(artifacts.summary_json) as f:
        write_summary_json(f, summary, log.header)
