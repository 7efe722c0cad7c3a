"""`report`: rebuild the artifacts of a run from its log, even if the run was killed."""

from __future__ import annotations

from penstock.cli.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Flag, Group, Positional

__all__ = ["COMMAND_LINE", "run"]

_OPTIONS = Group(
    "Options",
    (
        Flag(
            "--tokenizer", "str", "Count tokens with this tokenizer instead of the one of the run.", "tokenizer", "NAME"
        ),
        Flag("--show-trace-timing", "bool", "Also print the table of HTTP phases.", "show_http"),
        HELP,
    ),
)
COMMAND_LINE = CommandLine(
    "report",
    "Rebuild the artifacts of a run from its log.",
    groups=(_OPTIONS,),
    positionals=(Positional("RUN", "the run's artifact folder", "folder"),),
    details="""\
Every run appends its records to RUN/log while it lasts. This command computes the summary, the per-request file, the table
and the certificate from that log again, for example after a crash or kill -9, or to count tokens with another tokenizer.
""",
    examples=(
        ("After a crash", "report artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"),
        ("Count the tokens with another tokenizer", "report artifacts/demo --tokenizer builtin --show-trace-timing"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.open_run import open_run
    from penstock.cli.run import LazyTokenizer, report

    values = parsed.values
    folder = values["folder"]
    log = open_run(folder)
    header = log.header
    reports = log.reports("profiling")
    missing = header.workers - len(reports)
    log.close()
    tokenizer = LazyTokenizer(values.get("tokenizer") or header.tokenizer, header.models[0], header.tokenizer_revision)
    incomplete = None
    if any(worker.stopped for worker in reports):
        incomplete = "The run was stopped before its end."
    if missing:
        subject = (
            "its worker's report is"
            if header.workers == 1
            else f"the reports of {missing} of its {header.workers} workers are"
        )
        incomplete = f"The run was cut off: {subject} missing, as after a crash or kill -9."
    return report(
        folder,
        tokenizer=tokenizer,
        incomplete=incomplete,
        show_http=values.get("show_http", False),
        max_error_rate=1.0,  # failed requests are in the report; they do not make `report` fail
    )
