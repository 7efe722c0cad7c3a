"""`profile`: benchmark a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS, Group
from penstock.settings.flags.flag import read_groups

_RESUME = """\
Resume
--resume FOLDER | path resume penstock_only
    Go on with the run, sweep, search or comparison of servers in this artifact folder, which was killed, interrupted or
    lost a worker: take the load from its log, send what is left, and report both parts. Conversations without a complete
    record begin again at their first turn. Only --url, credentials, --cluster, --results-url, --otel-url,
    --mlflow-tracking-uri and --quiet, --ui and --verbose can be given with it.
"""
COMMAND_LINE = CommandLine(
    "profile",
    "Send requests to an LLM server under a chosen load, and report latency, throughput and errors. "
    "In flag names and choices, - and _ are equivalent, as are --flag value and --flag=value.",
    groups=(*GROUPS, *read_groups(_RESUME), Group("Help", (HELP,))),
    unsupported=UNSUPPORTED_FLAGS,
    usage=("--model NAME [options]",),
    exit_statuses=(
        ("0", "the run is complete, and no more requests failed than --max-error-rate allows"),
        ("1", "the run could not be carried out, too many requests failed, or --require-valid or --assert was not met"),
        ("2", "something on the command line or in the input file must change"),
        ("130", "interrupted"),
    ),
    # Every example can be run as it is: `mock://` is a server inside Penstock.
    examples=(
        (
            "Try it without a server",
            "profile --model test --url mock:// --streaming --tokenizer builtin --isl 100 --osl 20 --request-count 20",
        ),
        (
            "Sixteen requests in flight at once, for ten seconds",
            "profile --model test --url mock:// --streaming --tokenizer builtin --concurrency 16 --benchmark-duration 10",
        ),
        (
            "Five requests a second, evenly spaced",
            "profile --model test --url mock:// --tokenizer builtin --request-rate 5 --arrival-pattern constant",
        ),
    ),
)


def run(parsed: ParsedArguments) -> int:
    if "resume" in parsed.values:
        from penstock.cli.resume import resume

        return resume(parsed)
    from penstock.runs.read_experiment import read_experiment

    if not parsed.values.get("output.quiet"):
        for note in _idle_flags(parsed):
            print(f"Note: {note}", file=sys.stderr)
    experiment = read_experiment(parsed)  # mistakes on the command line are reported before the rest is imported
    from penstock.cli.run import profile

    return profile(experiment)


def _idle_flags(parsed: ParsedArguments) -> Iterator[str]:
    """Yield a sentence for each flag that is accepted because AIPerf does, and changes nothing."""
    from penstock.settings.resolve import has_idle_pattern

    for target in parsed.section("ignored"):
        yield f"{parsed.spellings[f'ignored.{target}']} has no effect in Penstock."
    if has_idle_pattern(parsed):
        name = parsed.spellings["load.arrivals"]
        yield f"{name} has no effect without a rate; --request-rate sets one."
