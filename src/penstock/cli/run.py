"""Preparing, running and reporting, for the commands `profile`, `compare` and `report`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.cli import interrupts
from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from penstock.cli.progress import Display, step_progress
from penstock.datasets import load as datasets
from penstock.endpoints.base import Endpoint
from penstock.endpoints.registry import endpoint as endpoint_named
from penstock.errors import UserError
from penstock.plural import counted
from penstock.secrets import redact_url
from penstock.settings.api_key import DEFAULT_VARIABLE
from penstock.settings.schema import Settings
from penstock.tokens.tokenizer import Tokenizer
from penstock.workers import local_processes
from penstock.workers.prepare import Prepared, default_entries, prepare, resolve_targets
from penstock.workers.run_folder import LOG_FOLDER, RunFolder

if TYPE_CHECKING:
    from penstock.metrics.conditions import Condition
    from penstock.metrics.summary import Summary

__all__ = [
    "FinishedRun",
    "LazyTokenizer",
    "execute",
    "open_folder",
    "parse_assertions",
    "profile",
    "report",
    "report_server",
]

_REASON_CHARACTERS = 300


class FinishedRun(NamedTuple):
    """A run that has ended and has no report yet."""

    settings: Settings
    tokenizer: LazyTokenizer
    prepared: Prepared
    outcome: local_processes.Outcome


def profile(settings: Settings) -> int:
    assertions = parse_assertions(settings)
    with open_folder(settings.output.folder) as folder:
        done = execute(settings, folder)
        return report(
            settings.output.folder,
            tokenizer=done.tokenizer,
            interrupted=done.outcome.interrupts > 0,
            input_error=done.outcome.input_error,
            expected=sum(n or 0 for n in done.prepared.expected),
            quiet=settings.output.quiet,
            show_progress=settings.output.ui != "none",
            show_http=settings.output.show_http,
            max_error_rate=settings.max_error_rate,
            require_valid=settings.require_valid,
            assertions=assertions,
            response_field=settings.endpoint.extra.get("response_field"),
        )


@contextlib.contextmanager
def open_folder(path: str) -> Iterator[RunFolder]:
    """Open the artifact folder, and restore it if Ctrl-C ends the process before the first request."""
    folder = RunFolder(path)
    with interrupts.undo_on_interrupt(folder.roll_back), folder:
        yield folder


def report_server(done: FinishedRun, url: int, into: str) -> int:
    """Write the report of one server, of a run that compares several, to the folder `into`."""
    settings = done.settings
    return report(
        settings.output.folder,
        tokenizer=done.tokenizer,
        interrupted=done.outcome.interrupts > 0,
        input_error=done.outcome.input_error,
        quiet=True,
        max_error_rate=settings.max_error_rate,
        require_valid=settings.require_valid,
        assertions=parse_assertions(settings),
        response_field=settings.endpoint.extra.get("response_field"),
        url=url,
        into=into,
    )


def execute(settings: Settings, folder: RunFolder, servers: int = 1) -> FinishedRun:
    """Prepare and run the benchmark; raise an exception if it ends before its first request.

    `servers` is the number of servers that a comparison sends each conversation to.
    """
    try:
        done = _execute(settings, folder, servers)
        if not folder.began:
            raise UserError(done.outcome.input_error) if done.outcome.input_error is not None else KeyboardInterrupt
    except KeyboardInterrupt:
        if not folder.began:
            print("Interrupted before the first request: nothing was written.", file=sys.stderr)
        raise
    return done


def _execute(settings: Settings, folder: RunFolder, servers: int) -> FinishedRun:
    quiet = settings.output.quiet
    show_progress = settings.output.ui != "none" and not quiet
    with _mock_servers(settings) as settings:  # noqa: PLR1704 - the URLs are now those of the mock servers
        endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
        targets = resolve_targets(settings, endpoint)
        tokenizer = LazyTokenizer(settings.tokenizer.name, settings.models[0], settings.tokenizer.revision)
        if not settings.endpoint.server_token_count:
            tokenizer.check()
        dataset = datasets.load(
            settings.input,
            default_entries(settings),
            tokenizer.get,
            step_progress("Preparing prompts", show_progress),
            scheduled=settings.load.recorded is not None,
        )
        reading = step_progress(f"Reading {dataset.name}", show_progress)
        prepared = prepare(
            folder.log,
            settings,
            endpoint,
            targets,
            dataset,
            reading,
            prompt_tokenizer=tokenizer.identity,
            servers=servers,
        )
        if not quiet:
            _announce(settings, endpoint, dataset, tokenizer, prepared)
            if folder.replaces is not None:
                path = os.path.join(settings.output.folder, "")
                started = _format_time(folder.replaces)
                print(f"With its first request it replaces the run of {started} in {path}", flush=True)
        outdated = _outdated_artifacts(settings, folder)
        notes_shown = _show_notes(prepared, 0)
        display = Display(prepared.job.phases, prepared.expected) if show_progress else None

        def begin() -> None:
            interrupts.load_began(settings.output.folder)
            folder.begin(outdated)

        outcome = local_processes.run(prepared.job, prepared.workers, display, prepared.input_files, begin)
        if display is not None:
            display.finish()
        _show_notes(prepared, notes_shown)
    return FinishedRun(settings, tokenizer, prepared, outcome)


def _outdated_artifacts(settings: Settings, folder: RunFolder) -> list[str]:
    """Return the paths of this run's artifacts and those of the run that it replaces, without the input file.

    Raise UserError if the run would overwrite its input file.
    """
    from penstock.records.log import RunLog
    from penstock.reports.artifacts import Artifacts

    source = os.path.realpath(settings.input.file) if settings.input.file else ""
    output = settings.output.folder
    paths = Artifacts.of(output, RunLog.read_header(folder.log)).every
    if source in map(os.path.realpath, paths):
        raise UserError(
            f"The run would overwrite its own input file, {settings.input.file}; choose another --artifact-dir."
        )
    if folder.previous_log is not None:
        with contextlib.suppress(UserError):  # the log of another version, whose artifacts are not known
            paths += Artifacts.of(output, RunLog.read_header(folder.previous_log)).every
    return [path for path in dict.fromkeys(paths) if os.path.realpath(path) != source]


def report(
    folder: str,
    *,
    tokenizer: LazyTokenizer | None = None,
    interrupted: bool = False,
    incomplete: str | None = None,
    input_error: str | None = None,
    expected: int = 0,
    quiet: bool = False,
    show_progress: bool = True,
    show_http: bool = False,
    max_error_rate: float = 0.0,
    require_valid: bool = False,
    assertions: Sequence[Condition] = (),
    response_field: str | None = None,
    url: int | None = None,
    into: str | None = None,
) -> int:
    """Write the artifacts of the run in `folder` from its log, show the results, and return the exit status.

    With `url`, report only the requests to that URL; with `into`, write to that folder.
    """
    from penstock.cli.screen import show
    from penstock.metrics.certificate import certify
    from penstock.records.log import RunLog
    from penstock.reports.artifacts import Artifacts
    from penstock.reports.write_artifacts import write_artifacts

    log = RunLog(os.path.join(folder, LOG_FOLDER), url=url)
    folder = into or folder
    header = log.header
    settings = header.settings
    endpoint = endpoint_named(settings.endpoint.type)
    counter = tokenizer or LazyTokenizer(settings.tokenizer.name, settings.models[0], settings.tokenizer.revision)
    if interrupted:
        incomplete = incomplete or "The run was interrupted before its end."
    if input_error is not None:
        incomplete = f"The run ended early: {input_error}"
    open_loop = settings.load.rate is not None or settings.load.recorded is not None
    summary = write_artifacts(
        log,
        folder,
        counter.load,
        lambda body: _input_texts(endpoint, body),
        partial(
            certify,
            log.reports("profiling"),
            workers=header.workers,
            open_loop=open_loop,
            concurrency=header.concurrency,
        ),
        was_cancelled=interrupted,
        incomplete_reason=incomplete,
        progress=step_progress("Counting tokens and writing records", show_progress and not quiet),
        expected=expected or None,
        show_http=show_http,
    )
    artifacts = Artifacts.of(folder, header)
    log.close()
    if counter.announced and summary.tokenizer.note == counter.note:
        summary.tokenizer = msgspec.structs.replace(summary.tokenizer, note=None)  # print the note only once
    if not quiet:
        print(f"Benchmark {_state(interrupted, input_error, incomplete)}. Results saved to: {os.path.join(folder, '')}")
        show(summary, artifacts, show_http=show_http)
    elif url is None:  # a comparison shows the certificates itself
        _warn_if_not_valid(summary, require_valid)
    failed_assertions = _failed_assertions(assertions, summary)
    if url is not None:  # say which of the servers
        failed_assertions = [f"{settings.endpoint.urls[url]}: {sentence}" for sentence in failed_assertions]
    status = _status(summary, interrupted, max_error_rate, require_valid, failed_assertions)
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
    from penstock.metrics.conditions import parse_condition

    return [parse_condition("--assert", text, example="p99 time_to_first_token<300") for text in settings.assertions]


def _failed_assertions(assertions: Sequence[Condition], summary: Summary) -> list[str]:
    if not assertions:
        return []
    from penstock.metrics.conditions import check_run

    return [sentence for assertion in assertions if (sentence := check_run(assertion, summary.metrics)) is not None]


def _status(
    summary: Summary, interrupted: bool, max_error_rate: float, require_valid: bool, failed_assertions: list[str]
) -> int:
    total = summary.succeeded + summary.failed
    rate = summary.failed / total if total else 0.0
    errors = []
    if total == 0 and not interrupted:
        errors.append("No request was completed.")
    if summary.failed:
        failed = f"{summary.failed} of {total} requests failed ({rate:.1%})"
        reason = _most_frequent_reason(summary)
        if rate > max_error_rate:
            errors.append(f"{failed}, more than --max-error-rate {max_error_rate:g} allows. {reason}")
        else:
            sys.stdout.flush()
            print(f"{failed}. {reason}", file=sys.stderr)
    if require_valid and summary.certificate is not None and summary.certificate.verdict != "VALID":
        reasons = " ".join(summary.certificate.reasons)
        errors.append(f"The certificate is {summary.certificate.verdict}, and --require-valid was given: {reasons}")
    errors += failed_assertions
    for error in errors:
        sys.stdout.flush()
        print(error, file=sys.stderr)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if errors else 0


def _most_frequent_reason(summary: Summary) -> str:
    from penstock.reports.error_text import one_line

    group = summary.errors[0]
    code = "" if group.code is None else f"{group.code} "
    message = one_line(group.message)
    if len(message) > _REASON_CHARACTERS:
        message = f"{message[:_REASON_CHARACTERS]}…"
    subject = "The reason" if len(summary.errors) == 1 else f"The most frequent reason ({group.count} times)"
    return f"{subject}: {code}{group.type}: {message.rstrip('.')}."


def _show_notes(prepared: Prepared, shown: int) -> int:
    """Print the notes about the input files after the first `shown`, and return how many there are.

    Some appear during the run, while the files are indexed.
    """
    notes = [] if prepared.input_files is None else prepared.input_files.notes
    for note in notes[shown:]:
        print(f"Note: {note}", file=sys.stderr)
    return len(notes)


def _announce(
    settings: Settings, endpoint: Endpoint, dataset: datasets.Dataset, tokenizer: LazyTokenizer, prepared: Prepared
) -> None:
    from penstock import __version__

    load = settings.load
    mode = "streaming" if settings.endpoint.streaming else "not streaming"
    rates = [f"concurrency {load.concurrency}"] if load.concurrency is not None else []
    if load.rate is not None:
        rates.append(f"{load.rate:g} requests/s ({load.arrivals})")
    if load.recorded is not None:
        speedup = f", {load.recorded.speedup:g} times as fast" if load.recorded.speedup != 1 else ""
        rates.append(f"recorded times{speedup}")
    path = redact_url(settings.endpoint.path or endpoint.path)
    urls = ", ".join(map(redact_url, settings.endpoint.urls))
    print(f"Penstock {__version__}: {', '.join(settings.models)} at {urls}{path and f' ({path})'}")
    workers = f", {prepared.workers} workers" if prepared.workers > 1 else ""
    count = prepared.conversations
    if dataset.recording is not None:
        size = counted(count, "conversation") if count is not None else "reading on while it is sent"
        data = f"{dataset.name} ({dataset.format}, {size}), byte for byte"
    else:
        noun = "conversation" if max(dataset.turns, default=1) > 1 else "prompt"
        data = counted(count or 0, f"synthetic {noun}" if dataset.synthetic else noun)
        data += "" if dataset.synthetic else f" of {dataset.name}"
    print(f"Load: {endpoint.name}, {mode}, {' and '.join(rates)}{workers}; {data}")
    if settings.endpoint.default_api_key:
        print(
            f"Note: Requests carry the API key in {DEFAULT_VARIABLE}; --api-key, --api-key-file or --api-key-env sets another."
        )
    for proxy in dict.fromkeys(target.origin.proxy for target in prepared.job.targets if target.origin.proxy):
        print(f"Note: Requests go through the proxy {proxy}, whose delays are part of all times.")
    for note in (dataset.note, tokenizer.note):
        if note:
            print(f"Note: {note}")
    tokenizer.announced = tokenizer.note is not None
    if settings.output.verbose:
        print("\n".join(_decisions(tokenizer, prepared)))
    sys.stdout.flush()


def _decisions(tokenizer: LazyTokenizer, prepared: Prepared) -> Iterator[str]:
    """Yield the values that were chosen automatically."""
    job = prepared.job
    for target in job.targets:
        host, port = target.origin.address[:2]
        yield f"Address of {target.url}: {host}, port {port}{', TLS' if target.origin.tls else ''}"
    yield f"Worker processes: {prepared.workers}"
    yield f"Connections opened before the first request: {job.preconnect if job.reuse_connections else 0:,}"
    for phase, expected in zip(job.phases, prepared.expected, strict=True):
        yield f"Requests of the {phase.name} phase: {'not known beforehand' if expected is None else f'{expected:,}'}"
    yield f"Seed of the plan: {job.seed}"
    if tokenizer.identity is not None:
        name, source = tokenizer.identity
        yield f"Tokenizer: {name} ({source})"


def _format_time(seconds: float) -> str:
    """Return the time of day, with the date unless it is today's."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def _input_texts(endpoint: Endpoint, body: bytes) -> list[str]:
    document = msgspec.json.decode(body)
    return endpoint.input_text(document) if isinstance(document, dict) else []


class LazyTokenizer:
    """The run's tokenizer, loaded on first use: before the load to generate text, or after it to count tokens."""

    def __init__(self, name: str | None, model: str, revision: str) -> None:
        self._arguments = (name, model, revision)
        self._loaded: Any = None
        self.announced = False
        """True once the note has been printed."""

    def load(self) -> Any:
        if self._loaded is None:
            from penstock.tokens.load import load

            self._loaded = load(*self._arguments)
        return self._loaded

    def check(self) -> None:
        """Load a tokenizer that the user named, so that an error appears before the run. (The builtin one has none.)"""
        if self._arguments[0] is not None and self._arguments[0].lower() != "builtin":
            self.load()

    def get(self) -> Tokenizer:
        tokenizer: Tokenizer = self.load().tokenizer
        return tokenizer

    @property
    def identity(self) -> tuple[str, str] | None:
        """Name and source of the tokenizer; None until it is loaded."""
        return None if self._loaded is None else (self._loaded.tokenizer.name, self._loaded.tokenizer.source)

    @property
    def note(self) -> str | None:
        return None if self._loaded is None else self._loaded.note


@contextlib.contextmanager
def _mock_servers(settings: Settings) -> Iterator[Settings]:
    """Start a mock server for each mock:// URL and yield settings with the URLs of the servers."""
    if not any(url.startswith("mock://") for url in settings.endpoint.urls):
        yield settings
        return
    from penstock.mock.mock_process import MockProcess, parse_mock_url

    with contextlib.ExitStack() as stack:
        urls = tuple(
            stack.enter_context(MockProcess(parse_mock_url(url))).url if url.startswith("mock://") else url
            for url in settings.endpoint.urls
        )
        endpoint = msgspec.structs.replace(settings.endpoint, urls=urls)
        yield msgspec.structs.replace(settings, endpoint=endpoint)
