"""What a run prints while it is prepared and sends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from msgspec.structs import replace

from penstock import __version__
from penstock.cli import interrupts
from penstock.cli.aiperf_log import PROFILING, AiperfLog
from penstock.cli.progress import Display, StatusLine, step_progress
from penstock.endpoints.base import Endpoint
from penstock.plural import counted
from penstock.runs.observer import Observer
from penstock.runs.phase_runner import PhaseRunner, RunProgress
from penstock.runs.points import Experiment, Point, PointOutcome
from penstock.runs.prepare import Prepared
from penstock.runs.run_folder import RunFolder
from penstock.schedule.phase import Phase
from penstock.secrets import redact_url
from penstock.settings.api_key import DEFAULT_VARIABLE
from penstock.settings.schema import LoadSettings, Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

if TYPE_CHECKING:
    from penstock.cli.dashboard.feed import DashboardFeed
    from penstock.cli.dashboard.snapshot import Header
    from penstock.metrics.summary import Summary
    from penstock.records.log import Sample


class TerminalObserver(Observer):
    """Prints what happens in a run, with a line for each point of an experiment, and lets Ctrl-C interrupt it."""

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        settings = experiment.settings
        self._folder = folder
        self._output = settings.output
        self._several = bool(experiment.largest)
        self._load = _describe(experiment)
        self._point_count = _count_points(experiment)
        self._phases: list[Phase] = []
        self._expected: list[int | None] = []
        self._show_progress = settings.output.ui != "none" and not settings.output.quiet
        self._display: Display | None = None
        self._feed: DashboardFeed | None = None
        self._header: Header | None = None
        """The first message to the dashboard; None without a dashboard."""
        self._runner: PhaseRunner | None = None
        self._began = False
        self._kept: list[tuple[IO[str], str]] = []
        """Lines to print once the dashboard has left the terminal."""
        self._waiting = StatusLine() if self._show_progress else None
        self._aiperf_log: AiperfLog | None = None
        if settings.called_aiperf and not settings.output.quiet:
            self._aiperf_log = AiperfLog(settings.output.folder, f"Penstock {__version__}: {settings.command}")

    def waiting(self, seconds: float, timeout: float, reason: str) -> None:
        if self._waiting is not None:
            self._waiting.show(f"Waiting for the server: {seconds:.0f} of {timeout:g} s; {reason}")

    def waited(self) -> None:
        if self._waiting is not None:
            self._waiting.clear()

    def step(self, task: str) -> Callable[[int, int], None] | None:
        return step_progress(task, self._show_progress and not self._dashboard_is_shown)

    def prepared(self, settings: Settings, endpoint: Endpoint, tokenizer: LazyTokenizer, prepared: Prepared) -> None:
        if not self._output.quiet:
            _announce(settings, endpoint, tokenizer, prepared, self._load)
            if self._folder.replaces is not None:
                path = os.path.join(self._output.folder, "")
                started = _format_time(self._folder.replaces)
                print(f"This run replaces that of {started} in {path} when it sends its first request", flush=True)
        if self._show_progress:
            self._display = Display(self._phases, self._expected, final_lines=not self._several)
            self._choose_dashboard(settings, prepared)

    def point_begins(self, point: Point, phases: list[Phase], expected: list[int | None]) -> None:
        name = point.name
        self._phases += [
            replace(phase, name=name if phase.kind == "profiling" else f"{name}, warmup") if self._several else phase
            for phase in phases
        ]
        self._expected += expected
        if self._aiperf_log is not None:
            self._aiperf_log.next_folder = point.settings.output.folder
        if self._feed is not None:
            builder = self._feed.builder
            if self._several:
                builder.begin_point(name, phases, expected)
            else:
                builder.phases.begin(phases, expected)

    def point_ended(self, result: PointOutcome) -> None:
        if self._display is not None:
            self._display.finish()
        if self._feed is not None:
            self._feed.builder.end_point(_short_line(result), failed=result.error is not None)
        if not self._output.quiet:
            self._print(point_line(result))

    def _choose_dashboard(self, settings: Settings, prepared: Prepared) -> None:
        """Prepare the dashboard if the user wants it and the terminal can show it."""
        ui = self._output.ui
        if ui not in ("dashboard", None):
            return
        from penstock.cli.dashboard.terminal_check import why_no_dashboard

        reason = why_no_dashboard()
        if reason is not None:
            if ui == "dashboard":
                self.note(f"The dashboard cannot be shown, because {reason}; the progress bar replaces it.")
            return
        from penstock.cli.dashboard.snapshot import Header

        urls = ", ".join(map(redact_url, settings.endpoint.urls))
        load = f", {self._load}" if self._load else ""
        self._header = Header(
            f"Penstock: {', '.join(settings.models)} at {urls}{load}",
            prepared.workers,
            open_loop=prepared.phases[-1].arrivals is not None,
            streaming=settings.endpoint.streaming,
            points=self._point_count,
        )

    @property
    def _dashboard_is_shown(self) -> bool:
        return self._feed is not None and self._feed.shown

    def note(self, text: str) -> None:
        self._print(f"Note: {text}", sys.stderr)

    def _print(self, text: str, stream: IO[str] | None = None) -> None:
        """Print a line, after the dashboard if there is one."""
        if self._aiperf_log is not None:
            self._aiperf_log.add(text)
        if self._dashboard_is_shown:
            self._kept.append((stream or sys.stdout, text))
        else:
            print(text, file=stream or sys.stdout, flush=True)

    def _start_dashboard(self, runner: PhaseRunner) -> None:
        if self._header is not None:
            from penstock.cli.dashboard.feed import DashboardFeed

            self._runner = runner
            with contextlib.suppress(OSError):  # without another process there is the progress bar
                self._feed = DashboardFeed(self._header)

    def _close_dashboard(self) -> None:
        """Close the dashboard, and print the lines that were kept while it was shown."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        closed = feed.close()
        if self._display is not None:
            self._display.take_over()
        kept, self._kept = self._kept, []
        for stream, text in kept:
            print(text, file=stream, flush=True)
        if not closed:
            self.note("The dashboard ended unexpectedly; the progress bar replaces it.")

    @contextlib.contextmanager
    def running(self, runner: PhaseRunner) -> Iterator[None]:
        """Pass the signals that end a run to the runner. The event loop's own signal handlers would lose a signal that arrives
        before the loop runs."""

        def interrupt(number: int, _: object) -> None:
            interrupts.leave_lost_terminal(number)
            runner.interrupt()

        before = {number: signal.signal(number, interrupt) for number in interrupts.ending_signals()}
        try:
            self._start_dashboard(runner)
            yield
        finally:
            self._close_dashboard()
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin(self) -> None:
        interrupts.load_began(self._output.folder)
        self._began = True

    def progress(self, progress: RunProgress) -> None:
        if self._aiperf_log is not None and self._began and self._aiperf_log.begin_point():
            self._print(PROFILING)
        if self._display is not None:
            self._display(progress)
        if self._feed is not None:
            self._feed_dashboard(self._feed, progress)

    def _feed_dashboard(self, feed: DashboardFeed, progress: RunProgress) -> None:
        if not feed.shown and self._display is not None and feed.is_ready():
            self._display.hand_over(self._print)
            feed.shown = True
        feed.update(progress, () if self._runner is None else self._runner.lost_workers)
        if feed.ended:
            self._close_dashboard()

    def sample(self, sample: Sample) -> None:
        if self._feed is not None:
            self._feed.builder.add_sample(sample)

    def finished(self) -> None:
        if self._aiperf_log is not None:
            self._aiperf_log.add("The last request has ended")
        if self._display is not None:
            self._display.finish()


def _announce(
    settings: Settings,
    endpoint: Endpoint,
    tokenizer: LazyTokenizer,
    prepared: Prepared,
    described: str | None,
) -> None:
    load, dataset = settings.load, prepared.data.dataset
    mode = "streaming" if settings.endpoint.streaming else "not streaming"
    if dataset.verbatim or prepared.job.files:
        mode = "streaming as in the file"
    rates = [f"concurrency {load.concurrency}"] if load.concurrency is not None else []
    rates += list(_rates(load))
    if load.recorded is not None:
        speedup = f", {load.recorded.speedup:g} times as fast" if load.recorded.speedup != 1 else ""
        rates.append(f"recorded times{speedup}")
    path = redact_url(settings.endpoint.path or endpoint.path)
    urls = ", ".join(map(redact_url, settings.endpoint.urls))
    print(f"Penstock {__version__}: {', '.join(settings.models)} at {urls}{path and f' ({path})'}")
    workers = f", {prepared.workers} workers" if prepared.workers > 1 else ""
    count = prepared.data.conversations
    if dataset.verbatim:
        size = counted(count, "conversation") if count is not None else "reading on while it is sent"
        data = f"{dataset.name} ({dataset.format}, {size}), byte for byte"
    else:
        noun = "conversation" if max(dataset.turns, default=1) > 1 else "prompt"
        if count is None:
            data = f"{noun}s of {dataset.name}, which are written while it is sent"
        else:
            data = counted(count, f"synthetic {noun}" if dataset.synthetic else noun)
            data += "" if dataset.synthetic else f" of {dataset.name}"
    print(f"Load: {endpoint.name}, {mode}, {described or ' and '.join(rates)}{workers}; {data}")
    if settings.endpoint.default_api_key:
        print(
            f"Note: Requests carry the API key in {DEFAULT_VARIABLE}; --api-key, --api-key-file or --api-key-env sets another."
        )
    for proxy in dict.fromkeys(target.origin.proxy for target in prepared.targets if target.origin.proxy):
        print(f"Note: Requests go through the proxy {proxy}, whose delays are part of all times.")
    for note in (dataset.note, tokenizer.note):
        if note:
            print(f"Note: {note}")
    tokenizer.announced = tokenizer.note is not None
    if settings.output.verbose:
        print("\n".join(_decisions(tokenizer, prepared)))
    sys.stdout.flush()


def _rates(load: LoadSettings) -> Iterator[str]:
    """Yield the ramp and the rate in words."""
    if load.concurrency_ramp_s is not None:
        yield f"reached after {load.concurrency_ramp_s:g} s"
    if load.rate_series:
        yield f"up to {load.arrival_rate:g} requests/s as in the rate series ({load.arrivals})"
    elif load.user_rate is not None:
        yield f"{counted(load.users or 0, 'user')} with {load.user_rate:g} requests/s"
    elif load.arrival_rate is not None:
        noun = "requests" if load.rate is not None else "conversations"
        ramp = "" if load.rate_ramp_s is None else f" after a ramp of {load.rate_ramp_s:g} s"
        yield f"{load.arrival_rate:g} {noun}/s{ramp} ({load.arrivals})"


def _decisions(tokenizer: LazyTokenizer, prepared: Prepared) -> Iterator[str]:
    """Yield the values that were chosen automatically."""
    job = prepared.job
    for target in prepared.targets:
        host, port = target.origin.address[:2]
        yield f"Address of {target.url}: {host}, port {port}{', TLS' if target.origin.tls else ''}"
    yield f"Worker processes: {prepared.workers}"
    yield f"Connections opened before the first request: {job.preconnect if job.settings.connections == 'pooled' else 0:,}"
    for phase, expected in zip(prepared.phases, prepared.expected, strict=True):
        yield f"Requests of the {phase.name} phase: {'not known beforehand' if expected is None else f'{expected:,}'}"
    yield f"Seed of the schedule: {job.seed}"
    if tokenizer.identity is not None:
        name, source = tokenizer.identity
        yield f"Tokenizer: {name} ({source})"


def _format_time(seconds: float) -> str:
    """Return the time of day, with the date unless it is today's."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def _describe(experiment: Experiment) -> str | None:
    """Describe the loads of a sweep; return None for repeated runs, which all have the load of the settings."""
    settings = experiment.settings.experiment
    if not settings.parameters:
        return None
    if settings.find_max is not None:
        name = settings.find_max.replace("-", " ")
        return f"{name} from {settings.search_min:g} up to {settings.search_max:g} under {' and '.join(settings.slos)}"
    if settings.searches_peak:
        name = settings.parameters[0].replace("_", " ")
        return f"{name} from {settings.search_min:g} up to a peak, at most {settings.search_max:g}"
    if settings.sweep == "auto":
        return f"concurrency from 1 up to saturation, at most {experiment.largest[0].load.concurrency}"
    names = " and ".join(name.replace("_", " ") for name in settings.parameters)
    runs = f", {settings.runs} runs each" if settings.runs > 1 else ""
    return f"{counted(len(experiment.largest), 'point')} of {names}{runs}"


def _count_points(experiment: Experiment) -> int | None:
    """Return how many points there will be; None if the results decide, and for a single run."""
    settings = experiment.settings.experiment
    if not experiment.largest or settings.chooses_points or settings.convergence_metric is not None:
        return None
    return len(experiment.largest) * settings.runs


def point_line(result: PointOutcome) -> str:
    """Return the line about a point that has ended."""
    name = result.point.name
    if result.point.rule is not None and result.report is None:
        return f"{name}: {result.point.rule.outcome()}"
    if result.report is None or result.error is not None:
        return f"{name}: failed. {result.error}"
    summary = result.report.summary
    verdict = "" if summary.certificate is None else f", {summary.certificate.verdict}"
    return f"{name}: {', '.join(_headline(summary))}{verdict}"


def _short_line(result: PointOutcome) -> str:
    """Return the figures of a point in a few words, for the dashboard."""
    if result.point.rule is not None:
        return result.point.rule.outcome()
    if result.report is None or result.error is not None:
        return f"failed. {result.error}"
    summary = result.report.summary
    rate, ttft = (summary.metrics.get(tag) for tag in ("request_throughput", "time_to_first_token"))
    parts = [] if rate is None else [f"{rate.avg:,.1f}/s"]
    if ttft is not None:
        parts.append(f"TTFT {ttft.p50:,.0f} ms (p99 {ttft.p99:,.0f})")
    return ", ".join([*parts, *([] if summary.certificate is None else [summary.certificate.verdict])])


def _headline(summary: Summary) -> list[str]:
    from penstock.reports.certainty_table import mark  # not above: it imports NumPy

    metrics = summary.metrics
    parts = [counted(summary.succeeded, "request")]
    if summary.failed:
        parts.append(f"{summary.failed:,} failed")
    if (rate := metrics.get("request_throughput")) is not None:
        parts.append(f"{rate.avg:,.2f} requests/s")
    for tag, title in (("time_to_first_token", "TTFT"), ("request_latency", "latency")):
        if (stats := metrics.get(tag)) is not None:
            p50, p99 = (f"{getattr(stats, name):,.2f}{mark(stats, name)} ms" for name in ("p50", "p99"))
            parts.append(f"{title} p50 {p50}, p99 {p99}")
    return parts
