"""`config expand`: print the complete settings of a configuration file."""

from __future__ import annotations

import sys

from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS, Positional

COMMAND_LINE = CommandLine(
    "config expand",
    "Print the settings that `{program} profile --config FILE` would use: environment variables are replaced, credentials are "
    "redacted, and defaults are listed as comments, as are the points of a sweep. Options of `{program} profile` override the "
    "file here too.",
    positionals=(Positional("FILE", "the YAML file to read", "config_file"),),
    inherited=GROUPS,
    unsupported=UNSUPPORTED_FLAGS,
    exit_statuses=(("0", "the settings were printed"), ("2", "the file has errors or cannot be read")),
    examples=(
        ("Print all settings", "config expand run.yaml"),
        ("With another concurrency", "config expand run.yaml --concurrency 16"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.config_validate import read_points
    from penstock.records.log import variation_label
    from penstock.settings.config.expand import expanded, key_of

    sweep, points = read_points(parsed)
    scenarios = {variation_label(values): settings for values, settings in points if parsed.variants}
    sys.stdout.write(expanded(points[0][1], {} if scenarios else sweep, scenarios))
    if len(points) > 1:
        sys.stdout.write("# Points:\n")
        for number, (values, _) in enumerate(points, 1):
            listed = ", ".join(f"{key_of(target)} {value}" for target, value in values.items())
            sys.stdout.write(f"#   {number}: {listed}\n")
    return 0
