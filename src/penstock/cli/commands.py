"""The commands, each with the line that the overview shows."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AIPERF_COMMANDS", "COMMANDS", "Command"]


class Command(NamedTuple):
    """A command, which is the module of its name in `penstock.cli`, with `COMMAND_LINE` and `run(parsed)`."""

    name: str
    line: str
    subcommands: tuple[str, ...] = ()
    """`validate` of `gateway` is the module `gateway_validate`."""


COMMANDS = (
    Command("profile", "benchmark a server"),
    Command("report", "write the artifacts of a run anew from its log"),
    Command("verify", "prove that a run sent exactly the bytes that it says"),
    Command("compare", "say which of two servers is faster, and whether that is more than noise"),
    Command("gateway", "stand in front of models: keys, aliases, guardrails, limits, a usage ledger", ("validate",)),
    Command("usage", "print what the gateway's ledger says about who used how much"),
    Command("mock", "serve a model whose timing is known exactly, to try clients on"),
    Command("completion", "print a completion script for bash, zsh or fish"),
    Command("version", "print the version"),
)

AIPERF_COMMANDS = (
    "analyze",
    "analyze-trace",
    "chat",
    "config",
    "kube",
    "plot",
    "plugins",
    "proxy",
    "service",
    "speed-bench-report",
    "synthesize",
    "validate",
)
"""Commands of AIPerf that this version knows by name only."""
