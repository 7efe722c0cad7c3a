"""Prepare, run, report: what `profile`, `compare` and `report` share."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER
from penstock.cli.progress import Display, step_progress
from penstock.datasets import load as datasets
from penstock.endpoints.base import Endpoint
from penstock.endpoints.registry import endpoint as endpoint_named
from penstock.errors import UserError
from penstock.plural import counted
from penstock.secrets import redact_url
from penstock.settings.schema import Settings
from penstock.tokens.tokenizer import Tokenizer
from penstock.workers import local_processes
from penstock.workers.prepare import Prepared, default_entries, prepare, reach
from penstock.workers.run_folder import LOG_FOLDER, RunFolder

if TYPE_CHECKING:
    from penstock.metrics.summary import Summary

__all__ = ["FinishedRun", "TokenizerOnce", "execute", "profile", "report", "report_arm"]


class FinishedRun(NamedTuple):
    """A run that is over and not yet reported."""

    settings: Settings
    tokenizer: TokenizerOnce
    prepared: Prepared
    outcome: local_processes.Outcome


def profile(settings: Settings) -> int:
    with RunFolder(settings.output.folder) as folder:
        done = execute(settings, folder)
        return report(
            settings.output.folder,
            tokenizer=done.tokenizer,
            interrupted=done.outcome.interrupted > 0,
            wrong=done.outcome.error,
            expected=sum(n or 0 for n in done.prepared.expected),
            quiet=settings.output.ui == "none",
            show_http=settings.output.show_http,
            max_error_rate=settings.max_error_rate,
            require_valid=settings.require_valid,
        )


def report_arm(done: FinishedRun, url: int, into: str) -> int:
    """Of a run that compares servers, write the files of one of them."""
    settings = done.settings
    return report(
        settings.output.folder,
        tokenizer=done.tokenizer,
        interrupted=done.outcome.interrupted > 0,
        wrong=done.outcome.error,
        quiet=True,
        max_error_rate=settings.max_error_rate,
        require_valid=settings.require_valid,
        url=url,
        into=into,
    )


def execute(settings: Settings, folder: RunFolder, arms: int = 1) -> FinishedRun:
    """`arms`: so many servers are compared, and each conversation goes to all of them. A run that does not get as far as its
    first request ends in an exception."""
    try:
        done = _execute(settings, folder, arms)
        if not folder.began:
            raise UserError(done.outcome.error) if done.outcome.error is not None else KeyboardInterrupt
    except KeyboardInterrupt:
        if not folder.began:
            print("Interrupted before the first request: nothing was written.", file=sys.stderr)
        raise
    return done


def _execute(settings: Settings, folder: RunFolder, arms: int) -> FinishedRun:
    quiet = settings.output.ui == "none"
    with _mocks(settings) as settings:  # noqa: PLR1704 - from here on with the urls of the mocks
        endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
        targets = reach(settings, endpoint)
        tokenizer = TokenizerOnce(settings.tokenizer.name, settings.models[0], settings.tokenizer.revision)
        if not settings.endpoint.server_token_count:
            tokenizer.check()
        dataset = datasets.load(
            settings.input,
            default_entries(settings),
            tokenizer.get,
            step_progress("Preparing prompts", quiet),
            scheduled=settings.load.recorded is not None,
        )
        reading = step_progress(f"Reading {dataset.name}", quiet)
        prepared = prepare(
            folder.log,
            settings,
            endpoint,
            targets,
            dataset,
            reading,
            prompt_tokenizer=tokenizer.identity,
            arms=arms,
        )
        if not quiet:
            _announce(settings, endpoint, dataset, tokenizer, prepared)
            if folder.replaces is not None:
                where = os.path.join(settings.output.folder, "")
                print(
                    f"With its first request it replaces the run of {_moment(folder.replaces)} in {where}", flush=True
                )
        begin = partial(folder.begin, _outdated(settings, folder))
        warned = _warn(prepared, 0)
        display = None if quiet else Display(prepared.job.phases, prepared.expected)
        outcome = local_processes.run(prepared.job, prepared.workers, display, prepared.sources, begin)
        if display is not None:
            display.finish()
        _warn(prepared, warned)
    return FinishedRun(settings, tokenizer, prepared, outcome)


def _outdated(settings: Settings, folder: RunFolder) -> list[str]:
    """The files in the folder that would pass for this run's, and those of the run that gives way; not the one that is sent
    from, which is not written over either."""
    from penstock.records.log import RunLog
    from penstock.reports.artifacts import Artifacts

    source = os.path.realpath(settings.input.file) if settings.input.file else ""
    place = settings.output.folder
    found = Artifacts.of(place, RunLog.read_header(folder.log)).every
    if source in map(os.path.realpath, found):
        raise UserError(
            f"The run would write over its own input, {settings.input.file}; choose another --artifact-dir."
        )
    if folder.log_before is not None:
        with contextlib.suppress(UserError):  # of another version: its files are not known
            found += Artifacts.of(place, RunLog.read_header(folder.log_before)).every
    return [path for path in dict.fromkeys(found) if os.path.realpath(path) != source]


def report(
    folder: str,
    *,
    tokenizer: TokenizerOnce | None = None,
    interrupted: bool = False,
    incomplete: str | None = None,
    wrong: str | None = None,
    expected: int = 0,
    quiet: bool = False,
    show_http: bool = False,
    max_error_rate: float = 0.0,
    require_valid: bool = False,
    url: int | None = None,
    into: str | None = None,
) -> int:
    """Write the artifacts of the run in `folder` from its log, show them, and say how the program ends. With `url`, of the
    requests to that one alone; with `into`, to another folder."""
    from penstock.cli.screen import show
    from penstock.metrics.certificate import certify
    from penstock.records.log import RunLog
    from penstock.reports.artifacts import Artifacts
    from penstock.reports.write_artifacts import write_artifacts

    log = RunLog(os.path.join(folder, LOG_FOLDER), url=url)
    folder = into or folder
    header = log.header
    endpoint = endpoint_named(header.endpoint)
    counter = tokenizer or TokenizerOnce(header.tokenizer, header.models[0], header.tokenizer_revision)
    if interrupted:
        incomplete = incomplete or "The run was interrupted before its end."
    if wrong is not None:
        incomplete = f"The run ended before its time: {wrong}"
    open_loop = header.rate is not None or header.arrivals == "recorded"
    summary = write_artifacts(
        log,
        folder,
        counter.load,
        lambda body: _input_texts(endpoint, body),
        partial(certify, log.reports(), workers=header.workers, open_loop=open_loop),
        was_cancelled=interrupted,
        incomplete_reason=incomplete,
        progress=step_progress("Counting tokens and writing records", quiet),
        expected=expected or None,
        show_http=show_http,
    )
    artifacts = Artifacts.of(folder, header)
    log.close()
    if counter.announced and summary.tokenizer.note == counter.note:
        summary.tokenizer = msgspec.structs.replace(summary.tokenizer, note=None)  # print the note only once
    if not quiet:
        print(f"Benchmark {_state(interrupted, wrong, incomplete)}. Results saved to: {os.path.join(folder, '')}")
        show(summary, artifacts, show_http=show_http)
    elif url is None:  # a comparison shows the certificates of its arms itself
        _warn_of_verdict(summary, require_valid)
    status = _status(summary, interrupted, max_error_rate, require_valid)
    if wrong is not None:
        print(
            f"The run ended before its time, and the results cover what was sent until then: {wrong}", file=sys.stderr
        )
        return EXIT_USER
    return status


def _state(interrupted: bool, wrong: str | None, incomplete: str | None) -> str:
    if interrupted:
        return "interrupted"
    if wrong is not None:
        return "ended before its time"
    return "complete" if incomplete is None else "was cut off before its end"


def _warn_of_verdict(summary: Summary, require_valid: bool) -> None:
    """For a run that shows nothing else; what `_status` says anyway is not said twice."""
    certificate = summary.certificate
    if certificate is None or certificate.verdict == "VALID" or require_valid or not summary.succeeded:
        return
    print(f"Certificate: {certificate.verdict}. {' '.join(certificate.reasons)}", file=sys.stderr)


def _status(summary: Summary, interrupted: bool, max_error_rate: float, require_valid: bool) -> int:
    total = summary.succeeded + summary.failed
    rate = summary.failed / total if total else 0.0
    problems = []
    if total == 0 and not interrupted:
        problems.append("No request was completed.")
    if rate > max_error_rate:
        problems.append(
            f"{summary.failed} of {total} requests failed ({rate:.1%}), more than --max-error-rate {max_error_rate:g} allows."
        )
    if require_valid and summary.certificate is not None and summary.certificate.verdict != "VALID":
        reasons = " ".join(summary.certificate.reasons)
        problems.append(f"The certificate is {summary.certificate.verdict}, and --require-valid was given: {reasons}")
    for problem in problems:
        sys.stdout.flush()
        print(problem, file=sys.stderr)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if problems else 0


def _warn(prepared: Prepared, known: int) -> int:
    """Say what was found in the user's files, beyond the first `known` sentences; some is found while the run goes on."""
    notes = [] if prepared.sources is None else prepared.sources.notes
    for note in notes[known:]:
        print(f"Note: {note}", file=sys.stderr)
    return len(notes)


def _announce(
    settings: Settings, endpoint: Endpoint, dataset: datasets.Dataset, tokenizer: TokenizerOnce, prepared: Prepared
) -> None:
    from penstock import __version__

    load = settings.load
    what = "streaming" if settings.endpoint.streaming else "not streaming"
    shape = [f"concurrency {load.concurrency}"] if load.concurrency is not None else []
    if load.rate is not None:
        shape.append(f"{load.rate:g} requests/s ({load.arrivals})")
    if load.recorded is not None:
        faster = f", {load.recorded.speedup:g} times as fast" if load.recorded.speedup != 1 else ""
        shape.append(f"recorded times{faster}")
    path = redact_url(settings.endpoint.path or endpoint.path)
    where = ", ".join(map(redact_url, settings.endpoint.urls))
    print(f"Penstock {__version__}: {', '.join(settings.models)} at {where}{path and f' ({path})'}")
    spread = f", {prepared.workers} workers" if prepared.workers > 1 else ""
    count = prepared.conversations
    if dataset.recording is not None:
        known = counted(count, "conversation") if count is not None else "reading on while it is sent"
        data = f"{dataset.name} ({dataset.format}, {known}), byte for byte"
    else:
        noun = "conversation" if max(dataset.turns, default=1) > 1 else "prompt"
        data = counted(count or 0, f"synthetic {noun}" if dataset.synthetic else noun)
        data += "" if dataset.synthetic else f" of {dataset.name}"
    print(f"Load: {endpoint.name}, {what}, {' and '.join(shape)}{spread}; {data}")
    for note in (dataset.note, tokenizer.note):
        if note:
            print(f"Note: {note}")
    tokenizer.announced = tokenizer.note is not None
    if settings.output.verbose:
        print("\n".join(_decisions(tokenizer, prepared)))
    sys.stdout.flush()


def _decisions(tokenizer: TokenizerOnce, prepared: Prepared) -> Iterator[str]:
    """What was settled without the user's word."""
    job = prepared.job
    for target in job.targets:
        host, port = target.origin.address[:2]
        yield f"Address of {target.url}: {host}, port {port}{', TLS' if target.origin.tls else ''}"
    yield f"Worker processes: {prepared.workers}"
    yield f"Connections opened before the first request: {job.open_ahead if job.reuse else 0:,}"
    for plan, expected in zip(job.phases, prepared.expected, strict=True):
        yield f"Requests of the {plan.name} phase: {'not known beforehand' if expected is None else f'{expected:,}'}"
    yield f"Seed of the plan: {job.seed}"
    if tokenizer.identity is not None:
        name, source = tokenizer.identity
        yield f"Tokenizer: {name} ({source})"


def _moment(seconds: float) -> str:
    """The time of day, with the date when that is another one."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def _input_texts(endpoint: Endpoint, body: bytes) -> list[str]:
    found = msgspec.json.decode(body)
    return endpoint.input_text(found) if isinstance(found, dict) else []


class TokenizerOnce:
    """The run's tokenizer, loaded when first asked for: before the load for synthetic text, after it for counting."""

    def __init__(self, name: str | None, model: str, revision: str) -> None:
        self._asked = (name, model, revision)
        self._loaded: Any = None
        self.announced = False
        """True once the note has been printed."""

    def load(self) -> Any:
        if self._loaded is None:
            from penstock.tokens.load import load

            self._loaded = load(*self._asked)
        return self._loaded

    def check(self) -> None:
        """One that the user named must load, and that is better known now than after the run. (The builtin one does.)"""
        if self._asked[0] is not None and self._asked[0].lower() != "builtin":
            self.load()

    def get(self) -> Tokenizer:
        tokenizer: Tokenizer = self.load().tokenizer
        return tokenizer

    @property
    def identity(self) -> tuple[str, str] | None:
        """Its name and source, once it is loaded."""
        return None if self._loaded is None else (self._loaded.tokenizer.name, self._loaded.tokenizer.source)

    @property
    def note(self) -> str | None:
        return None if self._loaded is None else self._loaded.note


@contextlib.contextmanager
def _mocks(settings: Settings) -> Iterator[Settings]:
    """Starts a mock server for each mock:// url, and puts its address in the url's place."""
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
