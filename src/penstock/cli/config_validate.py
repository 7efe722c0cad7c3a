"""`config validate`: check a configuration file."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments, ValueList
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS, Positional
from penstock.settings.schema import Settings
from penstock.settings.sweep import combinations

COMMAND_LINE = CommandLine(
    "config validate",
    "Check a configuration file as `{program} profile --config FILE` would, and print every error with its line. Nothing is "
    "sent. Options of `{program} profile` override the file here too.",
    positionals=(Positional("FILE", "the YAML file to check", "config_file"),),
    inherited=GROUPS,
    unsupported=UNSUPPORTED_FLAGS,
    exit_statuses=(("0", "the file has no error"), ("2", "the file has errors or cannot be read")),
    examples=(("Check a file", "config validate run.yaml"),),
)


def run(parsed: ParsedArguments) -> int:
    points = read_points(parsed).points
    sweep = f" It has {len(points)} points." if len(points) > 1 else ""
    print(f"{parsed.values['config_file']} is valid.{sweep}")
    return 0


class ConfigPoints(NamedTuple):
    sweep: dict[str, ValueList]
    """The values of the sweep by their targets; empty without one."""
    points: list[tuple[dict[str, Any], Settings]]
    """For each point its values, by their targets or by the names of its parameters, and its settings."""


def read_points(parsed: ParsedArguments) -> ConfigPoints:
    """Read and check every point as a run would, or raise `UserError`."""
    from penstock.runs.read_settings import asks_for_experiment, read_settings

    sweep = {target: value for target, value in parsed.values.items() if isinstance(value, ValueList)}
    if not asks_for_experiment(parsed):
        return ConfigPoints(sweep, [({}, read_settings(parsed))])
    from penstock.runs.read_experiment import make_experiment, read_variations

    variations = read_variations(parsed)
    make_experiment(variations, variations[0].settings.output.folder)  # checks what only experiments have
    if parsed.variants or "experiment.recipe" in parsed.values:
        return ConfigPoints(sweep, [(point.parameters, point.settings) for point in variations])
    values = [{target: point.values[target] for target in sweep} for _, point in combinations(parsed)]
    return ConfigPoints(sweep, [(each, point.settings) for each, point in zip(values, variations, strict=True)])
