"""`gateway validate`: check a resource file."""

from __future__ import annotations

import os

from penstock.cli.gateway import require_gateway_packages
from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

__all__ = ["COMMAND_LINE", "run"]

COMMAND_LINE = CommandLine(
    "gateway validate",
    "Read a resource file and print every error in it.",
    positionals=(Positional("FILE", "the resource file to check", "file"),),
    exit_statuses=(("0", "the file has no error"), ("2", "the file has errors or cannot be read")),
    examples=(("Check a resource file", "gateway validate resources.yaml"),),
)


def run(parsed: ParsedArguments) -> int:
    require_gateway_packages()
    from penstock.gateway.resources.file import load_resources
    from penstock.gateway.serving.reload import check_guardrails, counts_text

    path = parsed.values["file"]
    snapshot = check_guardrails(load_resources(path, os.environ))
    print(f"{path} is valid: {counts_text(snapshot)}.")
    return 0
