"""Running on the terminal, for the commands `profile` and `compare`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli import interrupts
from penstock.cli.run_report import parse_assertions, report_run
from penstock.cli.terminal_observer import TerminalObserver
from penstock.plural import counted
from penstock.runs.points import Experiment
from penstock.runs.run_experiment import FinishedRun, run_experiment
from penstock.runs.run_folder import RunFolder
from penstock.secrets import redact_url
from penstock.settings.schema import Settings

if TYPE_CHECKING:
    from penstock.runs.resume import LoggedRun


def profile(experiment: Experiment) -> int:
    """Run an experiment, report on it, and return the exit status."""
    with open_folder(experiment.settings) as folder:
        return report_finished(experiment, run_on_terminal(experiment, folder))


def report_finished(experiment: Experiment, done: FinishedRun) -> int:
    """Write and show the report of a run, copy its results, and return the exit status."""
    if experiment.largest:
        from penstock.cli.points_report import report_results

        status = report_results(experiment.settings, done)
    else:
        status = report_run(done)
    copy_results(experiment.settings)
    return status


@contextlib.contextmanager
def open_folder(settings: Settings, *, resume: bool = False) -> Iterator[RunFolder]:
    """Open the artifact folder, and restore it if Ctrl-C ends the process before the first request. With `resume`, go on with
    the run in it. Raise UserError for settings that only the end of the run would need."""
    parse_assertions(settings)
    if settings.output.remote is not None:
        from penstock.runs.upload import check_results_url

        check_results_url(settings.output.remote)
    folder = RunFolder(settings.output.folder, resume=resume)
    with interrupts.undo_on_interrupt(folder.roll_back), folder:
        yield folder


def copy_results(settings: Settings) -> None:
    """Copy the results to the URL that the user gave, if any."""
    if settings.output.remote is None:
        return
    from penstock.runs.upload import upload

    count = upload(settings.output.folder, settings.output.remote)
    if not settings.output.quiet:
        print(f"Copied {counted(count, 'file')} to {redact_url(settings.output.remote)}")


def run_on_terminal(experiment: Experiment, folder: RunFolder, logged: LoggedRun | None = None) -> FinishedRun:
    """Run an experiment and show its progress; raise an exception if it ends before its first request."""
    try:
        return run_experiment(experiment, folder, TerminalObserver(experiment, folder), logged=logged)
    except KeyboardInterrupt:
        if not folder.began or logged is not None:
            print("Interrupted before the first request: nothing was written.", file=sys.stderr)
        raise
