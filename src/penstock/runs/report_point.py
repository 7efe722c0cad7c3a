"""The report of a run, or of one point of an experiment, from its log. Nothing here prints."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from penstock.endpoints.base import Endpoint, endpoint_named
from penstock.errors import DiskFull, UserError, disk_full
from penstock.metrics.certificate import certify
from penstock.metrics.summary import Summary
from penstock.metrics.token_counting import ClientCounter, Counter, ServerCounter
from penstock.plural import counted
from penstock.processes import in_background
from penstock.records.bodies import BodyReader
from penstock.records.header import RunHeader
from penstock.records.log import FAILURES, INPUT_ERROR, INTERRUPTED, STOP_RULE, LoggedResume, RunLog
from penstock.records.worker_report import WorkerReport
from penstock.reports.artifact_writer import ArtifactWriter, ProgressCallback
from penstock.reports.artifacts import Artifacts
from penstock.schedule.share import Share, split
from penstock.tokens.lazy_tokenizer import LazyTokenizer

_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class Ending(NamedTuple):
    """How a run or point ended, as its log says."""

    interrupted: bool = False
    """True if the user interrupted it."""
    input_error: str | None = None
    """The error in the input files that ended it early."""
    failures: str | None = None
    """Why too many failed requests ended it early."""
    lost: Sequence[str] = ()
    """A sentence for each worker that was lost."""
    incomplete: str | None = None
    """Why it is incomplete, for all these reasons and others; None if it is complete."""


class PointReport(NamedTuple):
    summary: Summary
    artifacts: Artifacts
    ending: Ending
    tokenizer: LazyTokenizer


def report_point(
    log: RunLog,
    folder: str,
    tokenizer: LazyTokenizer | None = None,
    *,
    progress: ProgressCallback | None = None,
    processes: int = 1,
) -> PointReport:
    """Write the artifacts of a run or point into `folder`, and return its figures.

    `tokenizer` replaces the one that the settings name. With one process, nothing is forked, and the collector of cycles stays
    on. Raise UserError if the folder cannot be written or the disk is full."""
    try:
        return _report(log, folder, tokenizer, progress, processes)
    except OSError as error:
        run = os.path.dirname(log.folder)
        if error.errno in _UNWRITABLE:
            raise UserError(
                f"{folder} cannot be written ({error.strerror}); `penstock report {run} --output-dir FOLDER` writes the report "
                "to another folder."
            ) from None
        if disk_full(error) is not None:
            raise DiskFull(
                f"The disk is full: there is no space for the report in {folder}. Free some space, and `penstock report {run}` "
                f"writes it from the records in {log.folder}."
            ) from None
        raise


def _report(
    log: RunLog, folder: str, tokenizer: LazyTokenizer | None, progress: ProgressCallback | None, processes: int
) -> PointReport:
    settings = log.header.settings
    counter = tokenizer or LazyTokenizer(settings.tokenizer, settings.models[0])
    read_reports = partial(log.reports, "profiling")
    is_large = processes > 1 and len(log.sections()) > 1
    get_reports = cache(in_background(read_reports) if is_large else read_reports)
    with ArtifactWriter(log, folder, processes) as writer:
        summary, counts = writer.summarize(_token_counter(log.header, writer.bodies, counter), progress)
        ending = _ending(log, get_reports())
        profiled = [phase for phase in log.covered_phases if phase.kind == "profiling"]
        agreement = summary.token_agreement
        disagreements = () if agreement is None else agreement.disagreements()
        summary.certificate = certify(
            get_reports(),
            counts,
            summary.bounds,
            unresolved=summary.unresolved,
            metrics=summary.metrics,
            workers=_expected_reports(log, get_reports()),
            open_loop=any(phase.open_loop for phase in profiled),
            concurrency=profiled[0].concurrency if len(profiled) == 1 else None,
            lost=ending.lost,
            resumed=[_resume_sentence(resume) for resume in log.resumes],
            nodes=log.nodes,
            extra_checks=[(1, *disagreement) for disagreement in disagreements],
        )
        summary.was_cancelled = ending.interrupted
        summary.incomplete_reason = ending.incomplete
        writer.finish(summary)
        return PointReport(summary, writer.artifacts, ending, counter)


def _token_counter(header: RunHeader, bodies: BodyReader, tokenizer: LazyTokenizer) -> Counter:
    settings = header.settings
    if settings.endpoint.server_token_count:
        return ServerCounter(per_chunk=settings.endpoint.per_chunk_usage)
    templated = tokenizer if settings.tokenizer.apply_chat_template else None
    input_texts = partial(_input_texts, endpoint_named(settings.endpoint.type), templated)
    return ClientCounter(tokenizer.load, header, bodies, input_texts, separate=header.declaration.separate_texts)


def _input_texts(endpoint: Endpoint, templated: LazyTokenizer | None, body: bytes) -> list[str]:
    document = endpoint.decode(body)
    if templated is not None and isinstance(document, dict) and isinstance(document.get("messages"), list):
        system = document.get("system")  # of the endpoint `messages`
        first = [{"role": "system", "content": system}] if isinstance(system, (str, list)) else []
        return [templated.get_chat().render([*first, *document["messages"]], document.get("tools"))]
    return endpoint.input_text(document) if isinstance(document, dict) else []


def too_many_failed(summary: Summary, max_error_rate: float | None) -> bool:
    """Return whether so many requests failed that the run failed."""
    if max_error_rate is None:
        return summary.failed > 0 and not summary.succeeded
    return summary.failed > max_error_rate * (summary.succeeded + summary.failed)


def why_unusable(summary: Summary, max_error_rate: float | None) -> str | None:
    """Return why the figures of a run cannot be compared with those of others; None if they can."""
    if summary.incomplete_reason is not None:
        return summary.incomplete_reason
    total = summary.succeeded + summary.failed
    if not summary.succeeded:
        failed = f"all {counted(total, 'request')} failed" if total else "no request was completed"
    elif too_many_failed(summary, max_error_rate):
        failed = f"{summary.failed:,} of {total:,} requests failed"
    else:
        return None
    if not summary.errors:
        return f"{failed[:1].upper()}{failed[1:]}."
    group = summary.errors[0]
    code = "" if group.code is None else f"{group.code} "
    return f"{failed[:1].upper()}{failed[1:]}: {code}{group.type}."


def _ending(log: RunLog, reports: Sequence[WorkerReport]) -> Ending:
    last = log.covered_phases[-1].index if log.covered_phases else None
    # A run that was resumed has decisions that ended earlier parts of it.
    decisions = {decision.kind: decision.values for decision in log.decisions() if decision.phase in (None, last)}
    input_error = decisions.get(INPUT_ERROR, {}).get("reason")
    failures = decisions.get(FAILURES, {}).get("reason")
    interrupted = INTERRUPTED in decisions
    lost = _lost_workers(log, reports)
    incomplete = failures
    if input_error is not None:
        incomplete = f"The run ended early: {input_error}"
    elif interrupted:
        incomplete = failures or "The run was interrupted before its end."
    return Ending(
        interrupted, input_error, failures, lost, incomplete or _why_cut_off(log, reports) or " ".join(lost) or None
    )


def _why_cut_off(log: RunLog, reports: Sequence[WorkerReport]) -> str | None:
    """Return why a run is incomplete that nothing has ended early; None if it is complete, except for lost workers."""
    part = log.last_part
    own = [report for report in reports if report.worker >= part.first_worker]
    if not any(phase.kind == "profiling" for phase in log.covered_phases):
        return "The run ended before its profiling phase began."
    missing = part.workers - len({report.worker for report in own}) - len({lost.worker for lost in log.lost_workers})
    if missing > 0:
        subject = "its worker's report is"
        if part.workers > 1:
            subject = f"the reports of {missing} of its {part.workers} workers are"
        return f"The run was cut off: {subject} missing, as after a crash or kill -9."
    ended_by_rule = {decision.phase for decision in log.decisions(STOP_RULE)}
    is_stopped = any(report.stopped and report.phase not in ended_by_rule for report in own)
    return "The run was stopped before its end." if is_stopped else None


def _expected_reports(log: RunLog, reports: Sequence[WorkerReport]) -> int:
    """Return how many workers should have reported. Of the workers before the run was resumed, count those that did."""
    earlier = {report.worker for report in reports if report.worker < log.last_part.first_worker}
    return len(earlier) + log.last_part.workers


def _resume_sentence(resume: LoggedResume) -> str:
    restarted = ""
    if resume.conversations:
        restarted = f" {counted(resume.conversations, 'conversation')} without a complete record began again."
    missing = ""
    if resume.missing_reports:
        missing = " The workers before the gap were killed, so the checks of the client cover only the time after it."
    return (
        f"The run ended {resume.begin / 1e9:.1f} s after its start and was resumed after a gap of "
        f"{(resume.end - resume.begin) / 1e9:.1f} s. No figure includes the gap, in which nothing was sent.{restarted}"
        f"{missing}"
    )


def _lost_workers(log: RunLog, reports: Sequence[WorkerReport]) -> list[str]:
    """Return a sentence for each worker that was lost, with its share of the requests."""
    reported = {report.worker for report in reports}
    part = log.last_part
    workers = part.workers
    sentences = []
    covered = {phase.index for phase in log.covered_phases}
    for lost in log.lost_workers:
        if lost.worker in reported or lost.phase not in covered:
            continue  # it had finished
        requests = log.phases[lost.phase].requests
        number = lost.worker - part.first_worker
        share = f"1/{workers} of the requests"
        if requests is not None:
            share = f"{split(requests, Share(number, workers)):,} of the {requests:,} requests"
        sentences.append(
            f"Worker {number} of {workers} {lost.how} {lost.at / 1e9:.1f} s after the start; its share is {share}, and "
            "what it had not sent or recorded by then is missing."
        )
    return sentences
