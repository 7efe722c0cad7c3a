"""The run of an experiment: its points share the workers, their connections and the log. Nothing here prints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import DiskFull, PenstockError, RunError, UserError
from penstock.records.log import RunLog
from penstock.records.read_sections import most_processes
from penstock.runs.observer import Observer
from penstock.runs.point_runner import EndedPoint, PointRunner
from penstock.runs.points import Experiment, Point, PointOutcome
from penstock.runs.run_folder import LOG_FOLDER, RunFolder
from penstock.runs.start_run import StartedRun, start_run
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

if TYPE_CHECKING:
    from penstock.runs.resume import LoggedRun


class FinishedRun(NamedTuple):
    """A run that has ended. A single run has no report yet."""

    settings: Settings
    """With the URLs of mock servers."""
    tokenizer: LazyTokenizer
    results: list[PointOutcome]
    """Results of the points that were started; empty for a single run."""
    interrupts: int
    """How often the user interrupted it."""
    error: str | None = None
    """Why an experiment ended before its last point, unless it was interrupted."""


def run_experiment(
    experiment: Experiment,
    folder: RunFolder,
    observer: Observer | None = None,
    *,
    spawn: bool = False,
    logged: LoggedRun | None = None,
) -> FinishedRun:
    """Run the points of an experiment, and write the artifacts of each unless it is the whole run; raise an exception if the
    run ends before its first request.

    A point that fails does not end the others. If an experiment has to end early, the points that are done are kept. `logged`
    is what the log says about a run that is resumed. With `spawn`, nothing is forked from this process."""
    observer = observer or Observer()
    loop = _PointLoop(experiment, observer, logged, 1 if spawn else most_processes())
    run: StartedRun | None = None
    error: str | None = None
    try:
        with start_run(experiment, folder, observer, spawn=spawn, logged=logged) as run:
            loop.run(run)
    except PenstockError as failure:
        if run is None or not run.runner.began:
            if run is None or not run.runner.interrupts:
                raise
        else:
            error = _explain(failure, experiment, folder)
    runner = run.runner
    if not folder.began or (runner.stopping and not runner.began):
        raise UserError(runner.companion_error) if runner.companion_error is not None else KeyboardInterrupt
    if error is None and runner.lost_workers and experiment.largest:
        error = f"A worker process was lost{', so the points after it were not run' if loop.has_next else ''}."
    if experiment.largest:
        error = error or runner.companion_error
    return FinishedRun(run.settings, run.tokenizer, loop.results(run.tokenizer), runner.interrupts, error)


def _explain(failure: PenstockError, experiment: Experiment, folder: RunFolder) -> str:
    """Return a sentence about the failure of an experiment; raise that of a single run, with what to do about it."""
    path = experiment.settings.output.folder
    if isinstance(failure, DiskFull):
        text = (
            f"The disk is full. Free some space; then `penstock report {path}` shows the records up to then, and "
            f"`aiperf profile --resume {path}` sends the rest."
        )
        if experiment.largest:
            return text
        raise DiskFull(text) from None
    if experiment.largest:
        return f"{failure} `penstock report {path}` shows the records up to then."
    kept = f"{failure} The records up to then are in {folder.log}; `penstock report {path}` shows them."
    if isinstance(failure, UserError):
        raise UserError(f"{kept} `aiperf profile --resume {path}` sends the rest.") from None
    raise RunError(kept) from None


class _PointLoop:
    """The points of an experiment, one after the other."""

    def __init__(self, experiment: Experiment, observer: Observer, logged: LoggedRun | None, processes: int) -> None:
        """`processes` is how many may write a report."""
        self._observer = observer
        self._processes = processes
        self._settings = experiment.settings
        self._points = experiment.points()
        self._results: list[PointOutcome] = []
        self._next: Point | None = next(self._points)
        self.ended: list[EndedPoint] = []
        """Points whose reports are not written yet."""
        if logged is not None:
            self._replay(logged)

    @property
    def has_next(self) -> bool:
        return self._next is not None

    def _replay(self, logged: LoggedRun) -> None:
        """Let the experiment decide again by the results of the points that are complete. Raise UserError if all are."""
        tokenizer = LazyTokenizer(self._settings.tokenizer, self._settings.models[0])
        left = len(logged.points)
        while self._next is not None and left:
            point, done = self._next, logged.find(self._next)
            if done is None:
                self._take(PointOutcome(point, None, "Its dataset could not be loaded.", from_log=True))
                continue
            if not done.is_complete:
                return
            left -= 1
            ended = EndedPoint(point, done.logged, done.facts)
            self._take(self._result(ended, tokenizer)._replace(from_log=True))
        if self._next is None:
            folder = self._settings.output.folder
            raise UserError(f"The experiment in {folder} is complete: there is nothing to resume.")

    def run(self, run: StartedRun) -> None:
        """Run the points that are left."""
        points, runner = PointRunner(run, self._observer), run.runner
        while self._next is not None and (ended := points.run(self._next)) is not None:
            if ended.point.alone:
                self.ended.append(ended)
                return
            result = self._result(ended, run.tokenizer)
            self._observer.point_ended(result)
            self._take(result, decide=not runner.stopping)
            if runner.stopping or runner.lost_workers:
                break
        points.end_sending()

    def _result(self, ended: EndedPoint, tokenizer: LazyTokenizer) -> PointOutcome:
        """Return the result of a point for the experiment: with its report, or with what its rule has found."""
        if ended.unsent is not None:
            return PointOutcome(ended.point, None, ended.unsent)
        if ended.point.rule is not None:
            self.ended.append(ended)
            return PointOutcome(ended.point, None, facts=ended.facts)
        return report_ended(ended, self._settings.output.folder, tokenizer, self._processes)

    def _take(self, result: PointOutcome, *, decide: bool = True) -> None:
        """Keep a result and, with `decide`, give it to the experiment and receive its next point."""
        if result.point.rule is None:
            self._results.append(result)
        if not decide:
            return
        try:
            self._next = self._points.send(result)
        except StopIteration:
            self._next = None

    def results(self, tokenizer: LazyTokenizer) -> list[PointOutcome]:
        """Return the results of all points, and write the reports that are not written yet, except that of a single run."""
        folder = self._settings.output.folder
        late = [
            report_ended(ended, folder, tokenizer, self._processes) for ended in self.ended if not ended.point.alone
        ]
        return self._results + late


def report_ended(ended: EndedPoint, folder: str, tokenizer: LazyTokenizer, processes: int = 1) -> PointOutcome:
    """Write the artifacts of a point of the experiment in `folder`."""
    # A single run need not import this, which takes 0.3 s, before it sends.
    from penstock.runs.experiment_report import report_logged

    assert ended.logged is not None
    log = RunLog(os.path.join(folder, LOG_FOLDER), point=ended.logged.index)
    return report_logged(log, ended.point, folder, tokenizer, processes=processes)._replace(facts=ended.facts)
