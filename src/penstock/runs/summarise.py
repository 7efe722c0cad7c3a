"""The artifacts and the summary of a run, from its log. Nothing here prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

from msgspec.structs import replace

from penstock.endpoints.base import Endpoint, endpoint_named
from penstock.metrics.certificate import certify
from penstock.metrics.summary import Summary
from penstock.plural import counted
from penstock.processes import in_background
from penstock.records.log import LoggedResume, RunLog
from penstock.records.worker_report import WorkerReport
from penstock.reports.artifacts import Artifacts
from penstock.reports.write_artifacts import write_artifacts
from penstock.runs.run_folder import LOG_FOLDER
from penstock.schedule.share import Share, split
from penstock.tokens.lazy_tokenizer import LazyTokenizer

__all__ = ["RunReport", "summarise", "why_unusable"]


class RunReport(NamedTuple):
    summary: Summary
    artifacts: Artifacts
    tokenizer: LazyTokenizer
    urls: tuple[str, ...]
    lost: list[str]
    """A sentence for each worker that was lost."""


def summarise(
    folder: str,
    *,
    tokenizer: LazyTokenizer | None = None,
    interrupted: bool = False,
    incomplete: str | None = None,
    input_error: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    expected: int = 0,
    show_http: bool = False,
    show_timeline: bool = False,
    url: int | None = None,
    point: int | None = None,
    into: str | None = None,
    html: bool | None = None,
) -> RunReport:
    """Write the artifacts of the run in `folder` from its log, and return its summary.

    With `url`, cover only the requests to that URL, with `point` only that point; with `into`, write to that folder.
    `expected` is the number of requests for `progress`. `html` says whether to write report.html, instead of the settings.
    """
    log = RunLog(os.path.join(folder, LOG_FOLDER), url=url, point=point)
    folder = into or folder
    header = log.header
    settings = header.settings
    if html is not None:
        settings = header.settings = replace(settings, output=replace(settings.output, html=html))
    endpoint = endpoint_named(settings.endpoint.type)
    counter = tokenizer or LazyTokenizer(settings.tokenizer, settings.models[0])
    if interrupted:
        incomplete = incomplete or "The run was interrupted before its end."
    if input_error is not None:
        incomplete = f"The run ended early: {input_error}"
    read_reports = partial(log.reports, "profiling")
    get_reports = cache(in_background(read_reports) if len(log.sections()) > 1 else read_reports)
    profiled = [covered for covered in log.covered_phases if covered.kind == "profiling"]
    lost = _lost_workers(log, get_reports) if log.lost_workers else []
    summary = write_artifacts(
        log,
        folder,
        counter.load,
        lambda body: _input_texts(endpoint, body, counter if settings.tokenizer.apply_chat_template else None),
        lambda *counts, **checks: certify(
            get_reports(),
            *counts,
            **checks,
            workers=_expected_reports(log, get_reports()),
            open_loop=any(covered.open_loop for covered in profiled),
            concurrency=profiled[0].concurrency if len(profiled) == 1 else None,
            lost=lost,
            nodes=log.nodes,
            resumed=[_resume_sentence(resume) for resume in log.resumes],
        ),
        was_cancelled=interrupted,
        incomplete_reason=incomplete or " ".join(lost) or None,
        progress=progress,
        expected=expected or None,
        show_http=show_http,
        show_timeline=show_timeline,
    )
    artifacts = Artifacts.of(folder, header)
    return RunReport(summary, artifacts, counter, settings.endpoint.urls, lost)


def why_unusable(summary: Summary, max_error_rate: float) -> str | None:
    """Return why the figures of a run cannot be compared with those of others; None if they can."""
    if summary.incomplete_reason is not None:
        return summary.incomplete_reason
    total = summary.succeeded + summary.failed
    if not summary.succeeded:
        failed = f"all {counted(total, 'request')} failed" if total else "no request was completed"
    elif summary.failed / total > max_error_rate:
        failed = f"{summary.failed:,} of {total:,} requests failed"
    else:
        return None
    if not summary.errors:
        return f"{failed[:1].upper()}{failed[1:]}."
    group = summary.errors[0]
    code = "" if group.code is None else f"{group.code} "
    return f"{failed[:1].upper()}{failed[1:]}: {code}{group.type}."


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


def _lost_workers(log: RunLog, get_reports: Callable[[], list[WorkerReport]]) -> list[str]:
    """Return a sentence for each worker that was lost, with its share of the requests."""
    reported = {report.worker for report in get_reports()}
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


def _input_texts(endpoint: Endpoint, body: bytes, templated: LazyTokenizer | None) -> list[str]:
    document = endpoint.decode(body)
    if templated is not None and isinstance(document, dict) and isinstance(document.get("messages"), list):
        system = document.get("system")  # of the endpoint `messages`
        first = [{"role": "system", "content": system}] if isinstance(system, (str, list)) else []
        return [templated.get_chat().render([*first, *document["messages"]], document.get("tools"))]
    return endpoint.input_text(document) if isinstance(document, dict) else []
