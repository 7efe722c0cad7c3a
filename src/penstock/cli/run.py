"""Running on the terminal, for the commands `profile` and `compare`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli import interrupts
from penstock.cli.run_report import parse_assertions, report_run
from penstock.cli.terminal_observer import TerminalObserver
from penstock.runs.points import Experiment
from penstock.runs.run_experiment import FinishedRun, run_experiment
from penstock.runs.run_folder import RunFolder
from penstock.settings.schema import Settings

if TYPE_CHECKING:
    from penstock.runs.resume import LoggedRun


def profile(experiment: Experiment) -> int:
    """Run an experiment, report on it, and return the exit status."""
    with open_folder(experiment.settings) as folder:
        return report_finished(experiment, run_on_terminal(experiment, folder))


def report_finished(experiment: Experiment, done: FinishedRun) -> int:
    """Write and show the report of a run, send its results, and return the exit status."""
    if experiment.largest:
        from penstock.cli.points_report import report_results

        status = report_results(experiment.settings, done)
    else:
        status = report_run(done)
    send_results(experiment.settings)
    return status


@contextlib.contextmanager
def open_folder(settings: Settings, *, resume: bool = False) -> Iterator[RunFolder]:
    """Open the artifact folder, and restore it if Ctrl-C ends the process before the first request. With `resume`, go on with
    the run in it. Raise UserError for settings that only the end of the run would need."""
    parse_assertions(settings)
    if _sends_results(settings):
        from penstock.runs.upload import check_destinations

        check_destinations(settings)
    folder = RunFolder(settings.output.folder, resume=resume)
    with interrupts.undo_on_interrupt(folder.roll_back), folder:
        yield folder


def send_results(settings: Settings) -> None:
    """Send the results to where the user wants them, if anywhere, and say so."""
    if not _sends_results(settings):
        return
    from penstock.runs import upload

    sent = upload.send_results(settings)
    for sentence in () if settings.output.quiet else sent.done:
        print(sentence, flush=True)
    for sentence in sent.failed:
        print(f"Note: {sentence}", file=sys.stderr)


def _sends_results(settings: Settings) -> bool:
    targets = (settings.output.remote, settings.exports.mlflow_uri, settings.exports.wandb_project)
    return any(target is not None for target in targets)


def run_on_terminal(experiment: Experiment, folder: RunFolder, logged: LoggedRun | None = None) -> FinishedRun:
    """Run an experiment and show its progress; raise an exception if it ends before its first request."""
    try:
        return run_experiment(experiment, folder, TerminalObserver(experiment, folder), logged=logged)
    except KeyboardInterrupt:
        if not folder.began or logged is not None:
            print("Interrupted before the first request: nothing was written.", file=sys.stderr)
        raise
