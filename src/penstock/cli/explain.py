"""`explain`: the slowest requests of a run beside the state of server, network and client."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.cli.exit_status import EXIT_FAILED
from penstock.cli.terminal import aligned, print_json
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

if TYPE_CHECKING:
    from penstock.telemetry.explain import Evidence, Explanation

_DEFAULT = 10
_OPTIONS = f"""
--slowest | count slowest
    Number of requests to show. [default: {_DEFAULT}]
--json | bool json
    Print the result as JSON.
"""
COMMAND_LINE = CommandLine(
    "explain",
    "Show the slowest requests of a run beside the state of server, network and client.",
    groups=options(_OPTIONS),
    positionals=(Positional("RUN", "the run's artifact folder", "folder"),),
    details="""\
The rows are the slowest requests in order of time, with the server's queue and cache while each waited for its first content
(of runs with --server-metrics), the round trip to the server (of runs with --network-latency-automatic), the retransmitted
segments of its connection, and the delay that the client added. Below, the slowest requests are compared with the fastest
tenth: what is higher for the slow ones moved.
""",
    exit_statuses=(("0", "there are requests to explain"), ("1", "no request succeeded"), ("2", "RUN cannot be read")),
    examples=(
        ("The ten slowest requests", "explain artifacts/demo"),
        ("The three slowest, for a script", "explain artifacts/demo --slowest 3 --json"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.cli.open_log import open_log
    from penstock.telemetry.explain import explain

    explanation = explain(open_log(parsed.values["folder"]), parsed.values.get("slowest", _DEFAULT))
    if parsed.values.get("json"):
        print_json(explanation)
    elif explanation.requests:
        _show(explanation)
    if not explanation.requests:
        print("No request of this run succeeded, so there is nothing to explain.", file=sys.stderr)
        return EXIT_FAILED
    return 0


_COLUMNS = (
    ("queue_depth", "queue", ".1f"),
    ("running_requests", "running", ".1f"),
    ("cache_usage", "cache %", ".1f"),
    ("rtt_ms", "RTT ms", ".2f"),
    ("retransmits", "retransmits", ".0f"),
    ("client_delay_ms", "client ms", ".2f"),
)


def _show(explanation: Explanation) -> None:
    print(f"The {len(explanation.slowest):,} slowest of {explanation.requests:,} requests, in order of time:\n")
    headers = ("t s", "latency ms", "first ms", *(header for _, header, _ in _COLUMNS), "request id")
    rows = [headers]
    for request in explanation.slowest:
        first = "-" if request.first_content_ms is None else f"{request.first_content_ms:.1f}"
        values = (
            format(request.evidence[name], form) if name in request.evidence else "-" for name, _, form in _COLUMNS
        )
        rows.append((f"{request.at_s:.3f}", f"{request.latency_ms:.1f}", first, *values, request.request_id))
    print("\n".join(aligned(rows)))
    print(f"\nThey took {explanation.slow_ms:,.1f} ms on average, the fastest tenth {explanation.fast_ms:,.1f} ms.")
    for evidence in explanation.evidence:
        if evidence.verdict != "unknown":
            print(f"- {_sentence(evidence)}")
    if not explanation.observed_server:
        print("- The server's queue and cache are not known: the run has no metrics of it (--server-metrics).")
    if not explanation.observed_network:
        print("- The round trip of the network is not known: the run did not measure it (--network-latency-automatic).")


def _sentence(evidence: Evidence) -> str:
    values = f"{evidence.slow:,.2f} {evidence.unit} for the slowest, {evidence.fast:,.2f} for the fastest"
    header = evidence.header.capitalize()
    if evidence.verdict == "moved":
        return f"{header} MOVED: {values}."
    if evidence.verdict == "high for all":
        return f"{header} was high for all requests, so each of them waited: {values}."
    return f"{header} did not move: {values}."
