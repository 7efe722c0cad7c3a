"""`report`: write the artifacts of a run anew from its log, also of one that was killed."""

from __future__ import annotations

import os

from penstock.cli.arguments import Arguments

__all__ = ["run"]

_DETAILS = """\
Every run keeps its facts in FOLDER/log as they happen. This command derives the summary, the per-request file, the
table and the certificate from them once more: after a crash or kill -9, or when a tokenizer was missing before.

Examples
  {program} report artifacts/Qwen_Qwen3-0.6B-chat-concurrency1
  {program} report artifacts/demo --tokenizer builtin --show-trace-timing
"""


def arguments(program: str) -> Arguments:
    parser = Arguments(program, "report", "Write the artifacts of a run anew from its log.", _DETAILS)
    parser.add_argument("folder", metavar="RUN", type=os.path.expanduser, help="the run's artifact folder")
    parser.add_argument("--tokenizer", metavar="NAME", help="count tokens with this one instead of the run's own")
    parser.add_argument("--show-trace-timing", action="store_true", help="print the table of HTTP phases, too")
    return parser


def run(words: list[str], program: str) -> int:
    given = arguments(program).read(words)

    from penstock.cli.open_run import open_run
    from penstock.cli.run import LazyTokenizer, report

    log = open_run(given.folder)
    header = log.header
    reports = log.reports()
    silent = header.workers - len(reports)
    log.close()
    tokenizer = LazyTokenizer(given.tokenizer or header.tokenizer, header.models[0], header.tokenizer_revision)
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
        given.folder,
        tokenizer=tokenizer,
        incomplete=incomplete,
        show_http=given.show_trace_timing,
        max_error_rate=1.0,  # what failed in the run is in the report; writing it did not fail
    )
