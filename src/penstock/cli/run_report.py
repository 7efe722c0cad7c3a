"""Reporting on the terminal: the tables of a run, its errors and its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from penstock.cli.progress import step_progress
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

if TYPE_CHECKING:
    from penstock.metrics.conditions import Condition
    from penstock.metrics.summary import Summary
    from penstock.runs.run_experiment import FinishedRun

__all__ = ["check_summary", "failed_assertions", "parse_assertions", "report", "report_run"]

_REASON_CHARACTERS = 300


def report_run(done: FinishedRun, *, url: int | None = None, into: str | None = None) -> int:
    """Write the report of a run, show it as the settings say, and return the exit status.

    With `url`, report on one server of a run that compares several, to the folder `into`, and show nothing."""
    settings, shown = done.settings, url is None
    return report(
        settings.output.folder,
        tokenizer=done.tokenizer,
        interrupted=done.interrupts > 0,
        input_error=done.input_error,
        stopped=done.stopped,
        expected=done.expected if shown else 0,
        quiet=settings.output.quiet or not shown,
        show_progress=settings.output.ui != "none",
        show_http=settings.output.show_http and shown,
        show_timeline=settings.output.verbose and shown,
        max_error_rate=settings.max_error_rate,
        require_valid=settings.require_valid,
        fails_without_workers=True,
        assertions=parse_assertions(settings),
        response_field=settings.endpoint.extra.get("response_field"),
        url=url,
        into=into,
    )


def report(
    folder: str,
    *,
    tokenizer: LazyTokenizer | None = None,
    interrupted: bool = False,
    incomplete: str | None = None,
    input_error: str | None = None,
    stopped: str | None = None,
    expected: int = 0,
    quiet: bool = False,
    show_progress: bool = True,
    show_http: bool = False,
    show_timeline: bool = False,
    max_error_rate: float = 0.0,
    require_valid: bool = False,
    fails_without_workers: bool = False,
    assertions: Sequence[Condition] = (),
    response_field: str | None = None,
    url: int | None = None,
    point: int | None = None,
    into: str | None = None,
    html: bool | None = None,
) -> int:
    """Write the artifacts of the run in `folder` from its log, show the results, and return the exit status.

    `stopped` says why a stop rule ended the run, which is an error. With `fails_without_workers`, a worker that was lost is an
    error. With `url`, report only the requests to that URL, with `point` only that point; with `into`, write to that folder.
    `html` says whether to write report.html, instead of the settings.
    """
    from penstock.cli.screen import show
    from penstock.runs.summarise import summarise

    summary, artifacts, counter, urls, lost = summarise(
        folder,
        tokenizer=tokenizer,
        interrupted=interrupted,
        incomplete=incomplete or stopped,
        input_error=input_error,
        progress=step_progress("Counting tokens and writing records", show_progress and not quiet),
        expected=expected,
        show_http=show_http,
        show_timeline=show_timeline,
        url=url,
        point=point,
        into=into,
        html=html,
    )
    folder = into or folder
    incomplete = incomplete or (None if interrupted or input_error else summary.incomplete_reason)
    if counter.announced and summary.tokenizer.note == counter.note:
        summary.tokenizer = msgspec.structs.replace(summary.tokenizer, note=None)  # print the note only once
    if not quiet:
        print(f"Benchmark {_state(interrupted, input_error, incomplete)}. Results saved to: {os.path.join(folder, '')}")
        show(summary, artifacts, show_http=show_http, show_timeline=show_timeline)
    elif url is None:  # a comparison shows the certificates itself
        _warn_if_not_valid(summary, require_valid)
    not_met = failed_assertions(assertions, summary)
    if url is not None:  # say which of the servers
        not_met = [f"{urls[url]}: {sentence}" for sentence in not_met]
    errors = [*([] if stopped is None else [stopped]), *(lost if fails_without_workers else []), *not_met]
    status = _status(summary, interrupted, max_error_rate, require_valid, errors)
    if input_error is not None:
        print(
            f"The run ended early, and the results cover the requests sent until then: {input_error}", file=sys.stderr
        )
        return EXIT_USER
    if response_field is not None and _never_matched(summary):
        print(
            f"The response_field {response_field!r} in --extra-inputs matched nothing in any reply; compare it with a reply "
            "of the server.",
            file=sys.stderr,
        )
        return EXIT_USER
    return status


def _never_matched(summary: Summary) -> bool:
    """True if the response_field matched nothing in any reply."""
    from penstock.endpoints.detect_reply import UNMATCHED_FIELD

    unmatched = summary.warnings.get(UNMATCHED_FIELD, 0)
    failed = sum(group.count for group in summary.errors if group.owner == "user")
    return unmatched + failed > 0 and unmatched >= summary.succeeded


def _state(interrupted: bool, input_error: str | None, incomplete: str | None) -> str:
    if interrupted:
        return "interrupted"
    if input_error is not None:
        return "ended early"
    return "complete" if incomplete is None else "was cut off before its end"


def _warn_if_not_valid(summary: Summary, require_valid: bool) -> None:
    """Print the verdict of a run with no other output, unless `_status` prints it."""
    certificate = summary.certificate
    if certificate is None or certificate.verdict == "VALID" or require_valid or not summary.succeeded:
        return
    print(f"Certificate: {certificate.verdict}. {' '.join(certificate.reasons)}", file=sys.stderr)


def parse_assertions(settings: Settings) -> list[Condition]:
    """Raise UserError if an assertion is not a condition on a metric."""
    if not settings.assertions:
        return []
    from penstock.metrics.conditions import parse_assertion

    return [parse_assertion(text) for text in settings.assertions]


def failed_assertions(assertions: Sequence[Condition], summary: Summary) -> list[str]:
    if not assertions:
        return []
    from penstock.metrics.conditions import check_run

    return [sentence for assertion in assertions if (sentence := check_run(assertion, summary.metrics)) is not None]


def _status(
    summary: Summary, interrupted: bool, max_error_rate: float, require_valid: bool, other_errors: list[str]
) -> int:
    total = summary.succeeded + summary.failed
    errors = ["No request was completed."] if total == 0 and not interrupted else []
    tolerated, failures = check_summary(summary, max_error_rate, require_valid)
    for error in (*tolerated, *errors, *failures, *other_errors):
        sys.stdout.flush()
        print(error, file=sys.stderr)
    errors += [*failures, *other_errors]
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if errors else 0


def check_summary(summary: Summary, max_error_rate: float, require_valid: bool) -> tuple[list[str], list[str]]:
    """Return sentences about failures that the user tolerates, and about those that make the run fail."""
    tolerated, errors = [], []
    if summary.failed:
        total = summary.succeeded + summary.failed
        rate = summary.failed / total
        failed = f"{summary.failed} of {total} requests failed ({rate:.1%})"
        reason = _most_frequent_reason(summary)
        if rate > max_error_rate:
            errors.append(f"{failed}, more than --max-error-rate {max_error_rate:g} allows. {reason}")
        else:
            tolerated.append(f"{failed}. {reason}")
    if require_valid and summary.certificate is not None and summary.certificate.verdict != "VALID":
        reasons = " ".join(summary.certificate.reasons)
        errors.append(f"The certificate is {summary.certificate.verdict}, and --require-valid was given: {reasons}")
    return tolerated, errors


def _most_frequent_reason(summary: Summary) -> str:
    from penstock.reports.error_text import one_line

    group = summary.errors[0]
    code = "" if group.code is None else f"{group.code} "
    message = one_line(group.message)
    if len(message) > _REASON_CHARACTERS:
        message = f"{message[:_REASON_CHARACTERS]}…"
    subject = "The reason" if len(summary.errors) == 1 else f"The most frequent reason ({group.count} times)"
    return f"{subject}: {code}{group.type}: {message.rstrip('.')}."
