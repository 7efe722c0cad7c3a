"""`runs`: list the runs in a folder with their headline figures."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from penstock.cli.terminal import aligned, print_json
from penstock.errors import UserError
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

if TYPE_CHECKING:
    from penstock.runs.list_runs import ListedRun

_DEFAULT = "artifacts"
COMMAND_LINE = CommandLine(
    "runs",
    "List the runs in a folder and below it, the oldest first, with their headline figures.",
    groups=options("--json | bool json\n    Print the list as JSON."),
    positionals=(Positional("FOLDER", f"the folder with the runs (default: {_DEFAULT})", "folder", required=False),),
    details="""\
A run without figures has no summary, as after a crash; `{program} report` writes it. Latencies are in ms. The folders in a
run, hidden folders, node_modules and virtual environments are not searched, nor what is more than 8 folders below FOLDER.
""",
    examples=(
        ("All runs in ./artifacts", "runs"),
        ("The runs of a sweep, for a script", "runs artifacts/sweep --json"),
    ),
)
_COLUMNS = (
    ("request_count_avg", "requests", ",.0f"),
    ("error_request_count_avg", "failed", ",.0f"),
    ("request_throughput_avg", "req/s", ",.2f"),
    ("output_token_throughput_avg", "tokens/s", ",.0f"),
    ("time_to_first_token_p50", "TTFT p50", ",.1f"),
    ("time_to_first_token_p99", "TTFT p99", ",.1f"),
    ("inter_token_latency_p50", "ITL p50", ",.2f"),
    ("request_latency_p99", "latency p99", ",.1f"),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.runs.list_runs import list_runs

    folder = parsed.values.get("folder", _DEFAULT)
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder {folder}; name the folder with the runs.")
    runs = list_runs(folder)
    if parsed.values.get("json"):
        print_json(runs)
    elif runs:
        _show(runs, folder)
    else:
        print(f"There are no runs in {folder}.")
    return 0


def _show(runs: list[ListedRun], folder: str) -> None:
    columns = [column for column in _COLUMNS if any(column[0] in run.figures for run in runs)]
    rows = [("started", "run", "model", "load", *(title for _, title, _ in columns), "certificate")]
    for run in runs:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started_ns / 1e9))
        figures = [format(run.figures[name], form) if name in run.figures else "-" for name, _, form in columns]
        name = os.path.relpath(run.folder, folder)
        rows.append((started, name, run.model, run.load, *figures, _state(run)))
    print("\n".join(aligned(rows, left=(0, 1, 2, 3, len(rows[0]) - 1))))


def _state(run: ListedRun) -> str:
    if run.complete is None:
        return "no summary"
    verdict = run.verdict or "-"
    return verdict if run.complete else f"{verdict}, incomplete"
