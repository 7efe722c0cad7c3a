"""Reporting on the terminal: the tables of a run, its errors and its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from penstock.cli.progress import step_progress
from penstock.records.log import RunLog
from penstock.records.read_sections import most_processes
from penstock.runs.run_folder import LOG_FOLDER
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

if TYPE_CHECKING:
    from penstock.metrics.certificate import Certificate
    from penstock.metrics.conditions import Condition
    from penstock.metrics.summary import Summary
    from penstock.runs.report_point import Ending, PointReport
    from penstock.runs.run_experiment import FinishedRun

_REASON_CHARACTERS = 300


def report_run(done: FinishedRun, *, url: int | None = None, into: str | None = None) -> int:
    """Write the report of a run, show it as the settings say, and return the exit status.

    With `url`, report on one server of a run that compares several, to the folder `into`, and show nothing."""
    settings, output = done.settings, done.settings.output
    if url is not None:  # a comparison shows the certificates itself
        output = msgspec.structs.replace(output, quiet=True, show_http=False, verbose=False)
    log = RunLog(os.path.join(output.folder, LOG_FOLDER), url=url)
    changes = {name: getattr(output, name) for name in ("show_http", "verbose", "quiet", "ui")}
    report = write_report(log.with_output(**changes), into or output.folder, done.tokenizer)
    if output.quiet and url is None:
        _warn_if_not_valid(report.summary, settings.require_valid)
    return _check_run(report, settings, None if url is None else settings.endpoint.urls[url])


def write_report(log: RunLog, folder: str, tokenizer: LazyTokenizer | None) -> PointReport:
    """Write the report of a run or point, and show it unless the settings in the log say otherwise."""
    from penstock.cli.screen import show
    from penstock.runs.report_point import report_point

    output = log.header.settings.output
    progress = step_progress("Counting tokens and writing records", output.ui != "none" and not output.quiet)
    report = report_point(log, folder, tokenizer, progress=progress, processes=most_processes())
    summary, counter = report.summary, report.tokenizer
    if counter.announced and summary.tokenizer.note == counter.note:
        summary.tokenizer = msgspec.structs.replace(summary.tokenizer, note=None)  # print the note only once
    if not output.quiet:
        print(f"Benchmark {_state(report.ending)}. Results saved to: {os.path.join(folder, '')}")
        show(summary, report.artifacts, show_http=output.show_http, show_timeline=output.verbose)
    return report


def _check_run(report: PointReport, settings: Settings, url: str | None) -> int:
    """Print the errors of a run that has just ended, and return the exit status. `url` is the server that is reported on, if
    there are several."""
    summary, ending = report.summary, report.ending
    not_met = failed_assertions(parse_assertions(settings), summary)
    if url is not None:
        not_met = [f"{url}: {sentence}" for sentence in not_met]
    errors = [*([] if ending.failures is None else [ending.failures]), *ending.lost, *not_met]
    shown = url is None and not settings.output.quiet
    status = print_errors(
        summary, settings.max_error_rate, settings.require_valid, errors, ending.interrupted, reasons_shown=shown
    )
    if ending.input_error is not None:
        print(
            f"The run ended early, and the results cover the requests sent until then: {ending.input_error}",
            file=sys.stderr,
        )
        return EXIT_USER
    response_field = settings.endpoint.extra.get("response_field")
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


def _state(ending: Ending) -> str:
    if ending.interrupted:
        return "interrupted"
    if ending.input_error is not None:
        return "ended early"
    return "complete" if ending.incomplete is None else "was cut off before its end"


def _warn_if_not_valid(summary: Summary, require_valid: bool | tuple[str, ...]) -> None:
    """Print the verdict of a run with no other output, unless `print_errors` does."""
    certificate = summary.certificate
    if certificate is None or certificate.verdict == "VALID" or require_valid is True or not summary.succeeded:
        return
    print(f"Certificate: {certificate.verdict}. {' '.join(certificate.reasons)}", file=sys.stderr)


def parse_assertions(settings: Settings) -> list[Condition]:
    """Raise UserError if an assertion is not a condition on a metric, or --require-valid names no metric."""
    required = settings.require_valid or ()
    if not settings.assertions and required in ((), True):
        return []
    from penstock.metrics.conditions import check_metric, parse_assertion

    for metric in () if required is True else required:
        check_metric("--require-valid", metric)
    return [parse_assertion(text) for text in settings.assertions]


def failed_assertions(assertions: Sequence[Condition], summary: Summary) -> list[str]:
    if not assertions:
        return []
    from penstock.metrics.conditions import check_run

    return [sentence for assertion in assertions if (sentence := check_run(assertion, summary.metrics)) is not None]


def print_errors(
    summary: Summary,
    max_error_rate: float | None,
    require_valid: bool | tuple[str, ...] = False,
    other_errors: Sequence[str] = (),
    interrupted: bool = False,
    *,
    reasons_shown: bool = False,
) -> int:
    """Print what went wrong, and return the exit status. `reasons_shown`: the reasons of the certificate are on the screen."""
    total = summary.succeeded + summary.failed
    errors = ["No request was completed."] if total == 0 and not interrupted else []
    tolerated, failures = check_summary(summary, max_error_rate, require_valid, reasons_shown=reasons_shown)
    for error in (*tolerated, *errors, *failures, *other_errors):
        sys.stdout.flush()
        print(error, file=sys.stderr)
    errors += [*failures, *other_errors]
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if errors else 0


def check_summary(
    summary: Summary,
    max_error_rate: float | None,
    require_valid: bool | tuple[str, ...],
    *,
    reasons_shown: bool = False,
) -> tuple[list[str], list[str]]:
    """Return sentences about failures that the user tolerates, and about those that make the run fail."""
    from penstock.runs.report_point import too_many_failed

    tolerated: list[str] = []
    errors: list[str] = []
    if summary.failed:
        total = summary.succeeded + summary.failed
        failed = f"{summary.failed} of {total} requests failed ({summary.failed / total:.1%})"
        reason = _most_frequent_reason(summary)
        too_many = too_many_failed(summary, max_error_rate)
        if max_error_rate is not None:
            limit = f", more than --max-error-rate {max_error_rate:g} allows" if too_many else ""
            (errors if too_many else tolerated).append(f"{failed}{limit}. {reason}")
        elif too_many:
            errors.append(f"{failed}. {reason}")
        else:
            tolerated.append(f"WARNING: {failed}. {reason} With --max-error-rate 0, the exit status would be 1.")
    if require_valid and summary.certificate is not None:
        errors += _not_valid(summary.certificate, summary.metrics, require_valid, reasons_shown)
    return tolerated, errors


def _not_valid(
    certificate: Certificate, metrics: Collection[str], required: bool | tuple[str, ...], reasons_shown: bool
) -> Iterator[str]:
    """Yield a sentence for each verdict that is required and not VALID."""
    if required is True and certificate.verdict != "VALID":
        ending = "." if reasons_shown else f": {' '.join(certificate.reasons)}"
        yield f"The certificate is {certificate.verdict}, and --require-valid was given{ending}"
    for metric in required if isinstance(required, tuple) else ():
        verdict = certificate.of(metric)
        reasons = [] if reasons_shown else certificate.reasons_of(metric)
        if metric not in metrics:
            yield f"--require-valid {metric}: the run has no {metric}."
        elif verdict != "VALID":
            yield " ".join([f"--require-valid {metric}: the certificate is {verdict} for it.", *reasons])


def _most_frequent_reason(summary: Summary) -> str:
    from penstock.reports.error_text import one_line

    group = summary.errors[0]
    code = "" if group.code is None else f"{group.code} "
    message = one_line(group.message)
    if len(message) > _REASON_CHARACTERS:
        message = f"{message[:_REASON_CHARACTERS]}…"
    subject = "The reason" if len(summary.errors) == 1 else f"The most frequent reason ({group.count} times)"
    return f"{subject}: {code}{group.type}: {message.rstrip('.')}."
