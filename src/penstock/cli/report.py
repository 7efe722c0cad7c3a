"""`report`: write the artifacts of a run anew from its log, also of one that was killed."""

from __future__ import annotations

from penstock.cli.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Flag, Group, Positional

__all__ = ["COMMAND_LINE", "run"]

_OPTIONS = Group(
    "Options",
    (
        Flag("--tokenizer", "str", "Count tokens with this tokenizer instead of the run's own.", "tokenizer", "NAME"),
        Flag("--show-trace-timing", "bool", "Also print the table of HTTP phases.", "show_http"),
        HELP,
    ),
)
COMMAND_LINE = CommandLine(
    "report",
    "Write the artifacts of a run anew from its log.",
    groups=(_OPTIONS,),
    positionals=(Positional("RUN", "the run's artifact folder", "folder"),),
    details="""\
Every run keeps its facts in RUN/log as they happen. This command derives the summary, the per-request file, the table and
the certificate from them once more: after a crash or kill -9, or when a tokenizer was missing before.
""",
    examples=(
        ("After a crash", "report artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"),
        ("Count the tokens with another tokenizer", "report artifacts/demo --tokenizer builtin --show-trace-timing"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.open_run import open_run
    from penstock.cli.run import TokenizerOnce, report

    values = parsed.values
    folder = values["folder"]
    log = open_run(folder)
    header = log.header
    reports = log.reports()
    silent = header.workers - len(reports)
    log.close()
    tokenizer = TokenizerOnce(values.get("tokenizer") or header.tokenizer, header.models[0], header.tokenizer_revision)
    incomplete = None
    if any(each.stopped for each in reports):
        incomplete = "The run was stopped before its end."
    if silent:
        whose = (
            "its worker's report is"
            if header.workers == 1
            else f"the reports of {silent} of its {header.workers} workers are"
        )
        incomplete = f"The run was cut off: {whose} missing, as after a crash or kill -9."
    return report(
        folder,
        tokenizer=tokenizer,
        incomplete=incomplete,
        show_http=values.get("show_http", False),
        max_error_rate=1.0,  # what failed in the run is in the report; writing it did not fail
    )
