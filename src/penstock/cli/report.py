"""`report`: write the artifacts of a run anew from its log, also of one that was killed."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from penstock.errors import UserError

__all__ = ["run"]

_DETAILS = """\
Every run keeps its facts in FOLDER/log as they happen. This command derives the summary, the per-request file, the
table and the certificate from them once more: after a crash or kill -9, or when a tokenizer was missing before.

examples:
  penstock report artifacts/Qwen_Qwen3-0.6B-chat-concurrency1
  penstock report artifacts/demo --tokenizer builtin --show-trace-timing
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]}; see `penstock report --help`.")


def run(argv: list[str]) -> int:
    parser = _Parser(
        prog="penstock report",
        description="Write the artifacts of a run anew from its log.",
        epilog=_DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="the run's artifact folder")
    parser.add_argument("--tokenizer", help="count tokens with this one instead of the run's own")
    parser.add_argument("--show-trace-timing", action="store_true", help="print the table of HTTP phases, too")
    given = parser.parse_args(argv)

    from penstock.cli.profile import TokenizerOnce, report
    from penstock.drive.prepare import LOG_FOLDER
    from penstock.records.log import RunLog

    log = RunLog(os.path.join(given.folder, LOG_FOLDER))
    header = log.header
    finished = len(log.reports()) == header.workers
    log.close()
    tokenizer = TokenizerOnce(given.tokenizer or header.tokenizer, header.models[0], header.tokenizer_revision)
    incomplete = None if finished else "The run ended before its workers could report: it was killed or crashed."
    return report(
        given.folder,
        tokenizer=tokenizer,
        incomplete=incomplete,
        show_http=given.show_trace_timing,
        max_error_rate=1.0,  # what failed in the run is in the report; writing it did not fail
    )
