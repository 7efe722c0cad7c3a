"""`version`: print the version."""

from __future__ import annotations

import sys

from penstock import __version__
from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments

__all__ = ["COMMAND_LINE", "run"]

COMMAND_LINE = CommandLine("version", "Print the version of Penstock.")


def run(_given: ParsedArguments) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0
