"""`config validate`: check a configuration file."""

from __future__ import annotations

from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS, Group, Positional

__all__ = ["COMMAND_LINE", "run"]

COMMAND_LINE = CommandLine(
    "config validate",
    "Check a configuration file as `{program} profile --config FILE` would, and print every error with its line. Nothing is "
    "sent. Options of `{program} profile` override the file here too.",
    groups=(Group("Options", (HELP,)),),
    positionals=(Positional("FILE", "the YAML file to check", "config_file"),),
    inherited=GROUPS,
    unsupported=UNSUPPORTED_FLAGS,
    exit_statuses=(("0", "the file has no error"), ("2", "the file has errors or cannot be read")),
    examples=(("Check a file", "config validate run.yaml"),),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.config_points import read_points

    points = read_points(parsed).points
    sweep = f" It has {len(points)} points." if len(points) > 1 else ""
    print(f"{parsed.values['config_file']} is valid.{sweep}")
    return 0
