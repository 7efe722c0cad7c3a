"""`compare`: compare two finished runs, or two servers in one run that sends to both in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.exit_status import EXIT_FAILED
from penstock.comparison.compared_metrics import COMPARED, THROUGHPUTS
from penstock.errors import UserError
from penstock.settings.command_line import CommandLine, examples, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS, Positional

if TYPE_CHECKING:
    from penstock.comparison.compare_pairs import Comparison
    from penstock.metrics.conditions import Condition
    from penstock.records.header import RunHeader
    from penstock.runs.run_experiment import FinishedRun
    from penstock.settings.schema import Settings

COMMAND_LINE = CommandLine(
    "compare",
    """\
Report by how much B differs from A in each metric, with a 95 % confidence interval, and whether the difference is more than
noise. The mean of the primary metric (--metric) is tested by itself. The verdicts of the other metrics are corrected for
their number (Holm), because one interval in twenty excludes 0 by chance; a * marks a metric whose interval excludes 0 but
whose corrected verdict is noise. Percentiles, and metrics that follow from a tested one, have no verdict. The report shows
the certificates of the runs, and draws no conclusion from a run that is INVALID.
""",
    groups=options(f"""
--json | bool json
    Print the comparison as JSON instead of a table.
--metric NAME | enum metric penstock_only choices={"|".join(COMPARED)}
    Primary metric, whose mean is tested without correction.
    [default: time_to_first_token; request_latency if nothing is streamed]
--fail-if CONDITION | list fail_if comma_separated
    Exit with status 1 if B differs from A by this much, for example 'p99 time_to_first_token>5%'. Repeat it for more.
--html FILE | path html_file penstock_only
    Write the comparison of two runs as a page to this file.
"""),
    positionals=(
        Positional("RUN_A", "the artifact folder of the first run", "runs.first", required=False),
        Positional("RUN_B", "the artifact folder of the second run", "runs.second", required=False),
    ),
    inherited=GROUPS,
    unsupported=UNSUPPORTED_FLAGS,
    usage=(
        "RUN_A RUN_B [options]",
        "--url A --url B [options] [options of profile]",
    ),
    details="""\
Two runs: give their artifact folders. Requests with equal bodies (by SHA-256) are compared in pairs, so both runs should
send the same payloads: replay the inputs.json of one run against the other server. Runs of different prompts are compared
unpaired, with a note. The difference also contains whatever changed on the machines between the runs.

Two servers: give --url at least twice and any options of `{program} profile`. Every server is compared with the first. One
run sends every conversation to each server, in random order, so that drift of the machines favours none. Concurrency and rate
apply to all servers together, --request-count to each. The artifact folder has a subfolder (a, b, ...) for each server, and
the comparison in compare.json and, as a page, in report.html.
""",
    exit_statuses=(
        ("0", "the comparison is complete"),
        ("1", "a --fail-if condition is met or cannot be checked, or the run of two servers failed as `profile` would"),
        ("2", "something on the command line or in a file must change"),
        ("130", "interrupted"),
    ),
    examples=examples("""\
Two runs
    compare artifacts/server-1 artifacts/server-2
Fail in CI
    compare artifacts/before artifacts/after --fail-if 'p90 time_to_first_token>5%'
Two servers in one run
    compare --url http://one:8000 --url http://two:8000 --model m --input-file payloads.jsonl --concurrency 8
Try it without a server
    compare --url 'mock://?ttft=20' --url 'mock://?ttft=22' --model test --tokenizer builtin --request-count 100
"""),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SEPARATE_RUNS_NOTE = (
    "The runs took place at different times, so the difference contains whatever else changed between them. "
    "`compare --url A --url B` sends to both servers in turn."
)
_INTERLEAVED_NOTE = "Both servers were under load at the same time, each with its share of the concurrency or rate."


def run(parsed: ParsedArguments) -> int:
    if not parsed.values:
        from penstock.cli.help import help_text

        sys.stdout.write(help_text(COMMAND_LINE, parsed.program))
        return 0
    as_json = parsed.values.pop("json", False)
    metric = parsed.values.pop("metric", None)
    conditions = parsed.values.pop("fail_if", [])
    html = parsed.values.pop("html_file", None)
    runs = parsed.section("runs")
    limits = _parse_limits(conditions)
    if parsed.values and not runs:
        if html is not None:
            raise UserError("--html is for two finished runs; a run of two servers writes report.html into its folder.")
        return _servers(parsed, metric, as_json, limits)
    if len(runs) != 2 or len(parsed.values) > 2:
        raise UserError(f"Name two artifact folders, or give --url twice; see `{parsed.program} compare --help`.")
    return _runs(runs["first"], runs["second"], metric, as_json, limits, html)


def _parse_limits(conditions: list[str]) -> list[Condition]:
    if not conditions:
        return []
    from penstock.comparison.fail_if import parse_limit

    return [parse_limit(text) for text in conditions]


def _check_limits(limits: Sequence[Condition], comparisons: list[Comparison]) -> int:
    """Print a sentence for each limit that a difference exceeds, and return the exit status."""
    if not limits:
        return 0
    from penstock.comparison.fail_if import check_difference

    sentences = [s for comparison in comparisons for limit in limits if (s := check_difference(limit, comparison))]
    sys.stdout.flush()
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return EXIT_FAILED if sentences else 0


def _runs(first: str, second: str, metric: str | None, as_json: bool, limits: list[Condition], html: str | None) -> int:
    from penstock.cli.open_log import is_experiment, open_log
    from penstock.comparison.compare_pairs import compare
    from penstock.comparison.read_runs import pair, read_requests

    for path in (first, second):
        if not os.path.exists(path):
            raise UserError(f"There is no run at '{path}'.")
        if is_experiment(path):
            open_log(path)  # raises UserError, which lists its runs
    pairs = pair(read_requests(first, first), read_requests(second, second))
    comparisons = [compare(pairs, throughput=True, metric=metric, notes=(_SEPARATE_RUNS_NOTE,))]
    if html is not None:
        _write_page(html, comparisons, [(first, first), (second, second)])
    _show(comparisons, as_json)
    return _check_limits(limits, comparisons)


def _servers(parsed: ParsedArguments, metric: str | None, as_json: bool, limits: list[Condition]) -> int:
    from penstock.runs.read_settings import read_settings, refuse_experiment

    refuse_experiment(parsed, "compare")
    settings = read_settings(parsed, "compare-")
    servers = len(settings.endpoint.urls)
    if not 2 <= servers <= len(_LETTERS):
        raise UserError("Give --url at least twice: once for each server to compare.")
    if metric in THROUGHPUTS:
        raise UserError(f"--metric {metric}: the servers of one run share its rate; compare two separate runs by it.")
    output = settings.output
    if output.export_level == "summary":
        raise UserError("--export-level summary keeps no request records, which compare needs; leave it out.")
    if as_json:
        output = msgspec.structs.replace(output, quiet=True)
    settings = msgspec.structs.replace(settings, output=output)
    from penstock.cli.run import open_folder, run_on_terminal
    from penstock.runs.points import Single

    with open_folder(settings) as folder:
        done = run_on_terminal(Single(settings, servers), folder)
        return report_servers(settings, done, metric, as_json, limits)


def report_servers(
    settings: Settings,
    done: FinishedRun,
    metric: str | None = None,
    as_json: bool = False,
    limits: Sequence[Condition] = (),
) -> int:
    """Report on each server of a run that compares several, compare them, and return the exit status."""
    from penstock.cli.run import send_results
    from penstock.cli.run_report import report_run
    from penstock.comparison.compare_pairs import compare
    from penstock.comparison.read_runs import pair, read_requests
    from penstock.secrets import redact_url

    folder, servers = settings.output.folder, len(settings.endpoint.urls)
    status = 0
    sides = []
    for number, url in enumerate(settings.endpoint.urls):
        subfolder = os.path.join(folder, _LETTERS[number])
        status = max(status, report_run(done, url=number, into=subfolder))
        sides.append((subfolder, redact_url(url)))
    try:
        first, *others = [read_requests(subfolder, url) for subfolder, url in sides]
    except UserError:
        if not done.interrupts:
            raise
        print(
            "The run was interrupted before every server had completed a request, so there is nothing to compare.",
            file=sys.stderr,
        )
        send_results(settings)
        return status
    comparisons = [
        compare(
            pair(first, other, blocks=servers),
            throughput=False,
            metric=metric,
            notes=(_INTERLEAVED_NOTE,),
            seed=number,
        )
        for number, other in enumerate(others)
    ]
    with open(os.path.join(folder, "compare.json"), "wb") as file:
        file.write(_json(comparisons))
    if settings.output.html:
        _write_page(os.path.join(folder, "report.html"), comparisons, sides)
    _show(comparisons, as_json)
    if not as_json:
        print(f"Files of each server: {', '.join(os.path.join(subfolder, '') for subfolder, _ in sides)}")
    send_results(settings)
    return max(status, _check_limits(limits, comparisons))


def _write_page(path: str, comparisons: list[Comparison], runs: list[tuple[str, str]]) -> None:
    """Write the page of comparisons. `runs` are the folders (or per-request files) and the names of the runs."""
    from penstock import __version__
    from penstock.reports.report_html import PAGE_NAME, read_page, write_page
    from penstock.reports.runs_page import RunLink, comparison_document

    links = []
    for letter, (run, _) in zip(_LETTERS.upper(), runs, strict=False):
        own = os.path.join(run, PAGE_NAME)
        header = _read_header(run)
        if header is not None and os.path.exists(own):
            href = os.path.relpath(own, os.path.dirname(path) or ".")
            links.append(RunLink(letter, href, header.settings, read_page(own)))
    write_page(path, comparison_document(msgspec.to_builtins(comparisons), links, __version__))


def _read_header(run: str) -> RunHeader | None:
    """Return the header of the run in a folder; None if there is no log, as for the files of other programs."""
    from penstock.records.log import RunLog
    from penstock.runs.point_folder import find_log

    for folder in (run, os.path.dirname(run)):  # the log of two servers is in the folder above theirs
        found = find_log(folder) if os.path.isdir(folder) else None
        if found is not None:
            return RunLog(found[0], point=found[1]).header
    return None


def _json(comparisons: list[Comparison]) -> bytes:
    document = comparisons[0] if len(comparisons) == 1 else comparisons
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _show(comparisons: list[Comparison], as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(_json(comparisons))
        return
    from penstock.cli.screen import columns
    from penstock.comparison.text_table import comparison_text

    width = columns(sys.stdout)
    sys.stdout.write("\n".join(comparison_text(comparison, width) for comparison in comparisons))
