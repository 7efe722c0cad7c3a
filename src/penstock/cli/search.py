"""A search for the largest load on the terminal: a line for each level, the curve, and the limit with its interval."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED
from penstock.cli.experiment import ExperimentObserver, describe, show
from penstock.cli.run import check_remote, copy_results, explain_early_interrupt, open_folder
from penstock.cli.screen import draw_on
from penstock.metrics.capacity import SearchResult
from penstock.runs.experiment import run_experiment
from penstock.runs.experiment_report import report_experiment
from penstock.runs.search import SEARCH_FILE, Search, write_search

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["profile"]


def profile(search: Search) -> int:
    """Search for the largest load, print the curve and the limit, and return the exit status."""
    settings = search.settings
    check_remote(settings)
    output = settings.output
    with open_folder(output.folder) as folder:
        observer = ExperimentObserver(settings, folder, describe(search), None)
        with explain_early_interrupt(folder):
            done = run_experiment(search, folder, observer)
        report = report_experiment(output.folder, settings.experiment, done.results)
        result = search.result
        path = os.path.join(output.folder, SEARCH_FILE)
        write_search(path, search.parameter, search.slos, result)
    if not output.quiet:
        show(report, settings.experiment)
        draw_on(lambda console: _draw(console, search, result))
        print(f"Search JSON Export: {path}")
    copy_results(settings)
    sys.stdout.flush()
    if done.error is not None:
        print(done.error, file=sys.stderr)
    if done.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if done.error is not None or result.limit is None else 0


def _draw(console: Console, search: Search, result: SearchResult) -> None:
    from rich.table import Table
    from rich.text import Text

    name = search.parameter.replace("_", " ")
    table = Table(
        title=f"Penstock | Largest {name.title()} within the Objectives", title_style="bold", header_style="bold"
    )
    for head in (name.capitalize(), "Requests", *(f"Misses: {slo.text}" for slo in search.slos), "Decision"):
        table.add_column(head, justify="right", overflow="fold")
    for level in result.levels:
        shares = (f"{misses} ({misses / max(1, level.requests):.1%})" for misses in level.misses)
        table.add_row(f"{level.value:g}", f"{level.requests:,}", *shares, level.decision or "undecided")
    console.print(table)
    console.print(Text(limit_sentence(name, result), style="bold"), soft_wrap=True)


def limit_sentence(name: str, result: SearchResult) -> str:
    limit = result.limit
    requests = sum(level.requests for level in result.levels)
    if not result.levels:
        return "Nothing was measured."
    if limit is None:
        return f"No {name} met the objectives, not even {result.levels[0].value:g}."
    judged = f"({requests:,} requests judged)"
    if limit.high is None:
        return f"The objectives are met up to {name} {limit.low:g}, the highest that was tried {judged}."
    return (
        f"The largest {name} within the objectives is at least {limit.low:g} and below {limit.high:g}; the monotone fit "
        f"crosses the limit at {limit.estimate:.4g} {judged}."
    )
