"""`report`: rebuild the artifacts of a run from its log, even if the run was killed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import UserError
from penstock.plural import counted
from penstock.records.section import Damage
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

if TYPE_CHECKING:
    from penstock.records.log import RunLog
    from penstock.records.read_sections import Advance
    from penstock.records.section import Section

_OPTIONS = """
--tokenizer NAME | str tokenizer
    Count tokens with this tokenizer instead of the one of the run.
--show-trace-timing | bool show_http
    Also print the table of HTTP phases.
--verbose, -v | bool verbose
    Print all tables and notes.
--output-dir FOLDER | path output_dir
    Write the files into this folder instead of RUN.
--overwrite | bool overwrite
    Replace the files even if the log is damaged and contains less.
--no-html | bool html stored_value=false
    Do not write report.html.
"""
COMMAND_LINE = CommandLine(
    "report",
    "Rebuild the artifacts of a run from its log.",
    groups=options(_OPTIONS),
    positionals=(Positional("RUN", "the run's artifact folder", "folder"),),
    details="""\
Every run appends its records to RUN/log while it lasts. This command computes the summary, the per-request file, the table,
the certificate and report.html from that log again, for example after a crash or kill -9, or to count tokens with another
tokenizer. Damaged parts of a log are skipped and counted. Files that contain more than a damaged log are kept without
--overwrite.
""",
    examples=(
        ("After a crash", "report artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"),
        ("Leave the files of the run as they are", "report artifacts/demo --output-dir artifacts/demo-again"),
        ("Count the tokens with another tokenizer", "report artifacts/demo --tokenizer builtin --show-trace-timing"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.open_log import is_experiment, open_log
    from penstock.cli.run_report import print_errors, write_report
    from penstock.tokens.lazy_tokenizer import LazyTokenizer

    values = parsed.values
    folder = values["folder"]
    output = values.get("output_dir") or folder
    if not os.path.exists(output) or not os.path.isdir(folder) or not os.path.samefile(output, folder):
        _check_output(output)
    changes = {
        "show_http": values.get("show_http", False),
        "verbose": values.get("verbose", False),
        "html": values.get("html", True),
        "quiet": False,
        "ui": None,
    }
    if is_experiment(folder):
        return _report_experiment(folder, output, values, changes)
    log = open_log(folder)
    if not values.get("overwrite"):
        _check_not_worse(log, output)
    settings = log.header.settings
    tokenizer = LazyTokenizer(settings.tokenizer, settings.models[0], values.get("tokenizer"))
    report = write_report(log.with_output(**changes), output, tokenizer)
    return print_errors(report.summary, 1.0)  # failed requests are in the report; they do not make `report` fail


def _report_experiment(folder: str, output: str, values: dict[str, Any], changes: dict[str, Any]) -> int:
    """Write the files of all points again, and those over all points."""
    from penstock.cli.open_log import open_points
    from penstock.cli.points_report import report_again

    if not values.get("overwrite"):
        for log in open_points(folder):
            assert log.point is not None
            _check_not_worse(log, os.path.join(output, log.point.folder))
    return report_again(folder, output, values.get("tokenizer"), changes)


class _Summary(msgspec.Struct):
    """The part of a summary file that tells how much of the log it covers."""

    torn_bytes: int = 0
    skipped_bytes: int = 0


def _check_output(folder: str) -> None:
    from penstock.runs.run_folder import LOG_FOLDER

    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f"--output-dir {folder} is not a folder.")
    if os.path.exists(os.path.join(folder, LOG_FOLDER, "run.json")):
        raise UserError(f"--output-dir {folder} contains another run; choose another folder.")


def _check_not_worse(log: RunLog, folder: str) -> None:
    """Raise UserError if the artifacts in `folder` contain more than those that the log gives now."""
    from penstock.records.read_sections import most_processes, read_sections
    from penstock.reports.artifacts import Artifacts

    artifacts = Artifacts.of(folder, log.header)
    requests = damage = 0
    for count, of_section in read_sections(log.sections(), _count, processes=most_processes()):
        requests += count
        damage += of_section.torn_bytes + of_section.skipped_bytes
    try:
        with open(artifacts.summary_json, "rb") as file:
            summary = msgspec.json.decode(file.read(), type=_Summary)
            more_damage = damage > summary.torn_bytes + summary.skipped_bytes
    except (FileNotFoundError, msgspec.MsgspecError):
        more_damage = False
    exported = _line_count(artifacts.records)
    if not more_damage and requests >= exported:
        return
    bytes_ = f"{counted(damage, 'byte')} of the log cannot be read any more" if damage else "the log has lost requests"
    counts = f", and it has {requests:,} of the {exported:,} requests in the per-request file"
    if requests >= exported:
        counts = ", so the report would contain less"
    raise UserError(
        f"The files in {folder} were kept: {bytes_}{counts}. Write the report to another folder with --output-dir, or "
        "replace the files with --overwrite."
    )


def _count(section: Section, _advance: Advance) -> tuple[int, Damage]:
    damage = Damage()
    return section.frame_count(damage), damage


def _line_count(path: str | None) -> int:
    if path is None or not os.path.exists(path):
        return 0
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
