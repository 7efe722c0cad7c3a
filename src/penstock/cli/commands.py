"""The commands of the program."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command. The module of the same name (with underscores) in `penstock.cli` has its `COMMAND_LINE` and `run(parsed)`."""

    name: str
    summary: str
    """One line for the overview and for completion."""
    subcommands: tuple[str, ...] = ()
    """The module of a subcommand has both names, as in `gateway_validate`."""

    @property
    def module(self) -> str:
        return "penstock.cli." + self.name.replace("-", "_")


COMMANDS = (
    Command("profile", "benchmark a server"),
    Command("config", "write, check or print a configuration file for --config", ("init", "validate", "expand")),
    Command("report", "rebuild the artifacts of a run from its log"),
    Command("runs", "list the runs in a folder with their headline figures"),
    Command("plot", "write the charts of runs as PNG and SVG"),
    Command("explain", "show the slowest requests of a run beside the state of server, network and client"),
    Command("verify", "check that a run sent exactly the recorded request bodies"),
    Command("analyze-trace", "print the lengths, the arrival rate and the reuse of a trace"),
    Command("compare", "compare two runs or servers, and tell differences from noise"),
    Command(
        "gateway", "serve models behind caller keys, aliases, guardrails, limits and a usage ledger", ("validate",)
    ),
    Command("usage", "print the usage per caller key and model from the gateway's ledger", ("purge",)),
    Command("mock", "serve a mock model with exactly known timing"),
    Command("completion", "print a completion script for bash, zsh or fish"),
)

AIPERF_COMMANDS = (
    "analyze",
    "kube",
    "plugins",
    "proxy",
    "service",
    "speed-bench-report",
    "synthesize",
    "validate",
)
"""AIPerf commands that this version does not support, and refuses by name."""
