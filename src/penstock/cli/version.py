"""`version`: print the version."""

from __future__ import annotations

import sys

from penstock import __version__
from penstock.cli.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Group

__all__ = ["COMMAND_LINE", "run"]

COMMAND_LINE = CommandLine("version", "Print the version of Penstock.", groups=(Group("Options", (HELP,)),))


def run(_given: ParsedArguments) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0
