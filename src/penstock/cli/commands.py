"""The commands, each with the line that the overview shows."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AIPERF_COMMANDS", "COMMANDS", "Command"]


class Command(NamedTuple):
    name: str
    line: str
    module: str
    """In `penstock.cli`, with `run(words, program)`."""


COMMANDS = (
    Command("profile", "benchmark a server", "profile"),
    Command("report", "write the artifacts of a run anew from its log", "report"),
    Command("verify", "prove that a run sent exactly the bytes that it says", "verify"),
    Command("compare", "say which of two servers is faster, and whether that is more than noise", "compare"),
    Command("gateway", "stand in front of models: keys, aliases, guardrails, limits, a usage ledger", "gateway"),
    Command("usage", "print what the gateway's ledger says about who used how much", "usage"),
    Command("mock", "serve a model whose timing is known exactly, to try clients on", "mock"),
    Command("completion", "print a completion script for bash, zsh or fish", "completion"),
    Command("version", "print the version", "version"),
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
