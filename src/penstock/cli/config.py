"""`config`: write, check or print a configuration file."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

COMMAND_LINE = CommandLine(
    "config",
    "Work with YAML files for `{program} profile --config FILE`, which have AIPerf's keys.",
    positionals=(Positional("COMMAND", "the command: init, validate or expand", "command", "str"),),
    details="""\
Commands
  init      print a file to begin with, with comments
  validate  check a file, and print every error with its line
  expand    print the settings of a file, with defaults and environment variables, without credentials

Example
  {program} config init --output run.yaml
  {program} profile --config run.yaml
""",
)


def run(parsed: ParsedArguments) -> int:
    """Refuse a command that `main` does not find, as in `config -- other`."""
    raise UserError(f"config has no command {parsed.values['command']!r}; see `{parsed.program} config --help`.")
