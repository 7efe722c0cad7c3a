"""`analyze-trace`: print the lengths, the arrival rate and the reuse of a trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.cli.terminal import print_json
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

if TYPE_CHECKING:
    from penstock.datasets.trace_statistics import Distribution, TraceStatistics

_OPTIONS = """
--block-size, --prompt-input-tokens-block-size, --isl-block-size | tokens block_size
    Number of tokens that each of the hash_ids stands for. [default: 512, and 16 for bailian_trace]
--custom-dataset-type FORMAT | str format
    Format of FILE: {formats}. [default: detected from the file]
--json | bool json
    Print the result as JSON.
"""
COMMAND_LINE = CommandLine(
    "analyze-trace",
    "Print the lengths, the arrival rate and the reuse of a trace, without sending anything.",
    groups=options(_OPTIONS),
    positionals=(Positional("FILE", "a trace with input lengths", "file"),),
    details="""\
The theoretical cache hit rate is the share of all prompt tokens that an unlimited prefix cache would already hold. For each
prompt, in order of time, these are the tokens of its leading blocks that an earlier prompt has, too.
""",
    exit_statuses=(("0", "the trace was read"), ("2", "the trace cannot be read")),
    examples=(
        ("Describe a trace", "analyze-trace trace.jsonl"),
        ("Describe a trace with blocks of 16 tokens, as JSON", "analyze-trace trace.jsonl --block-size 16 --json"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.datasets.dataset import ReadOptions
    from penstock.datasets.detect_format import detect
    from penstock.datasets.formats import lookup
    from penstock.datasets.jsonl import FileErrors
    from penstock.datasets.trace_statistics import trace_statistics
    from penstock.settings.schema import InputSettings

    values = parsed.values
    path = values["file"]
    if not os.path.exists(path):
        raise UserError(f"There is no file {path}.")
    settings = InputSettings(file=path, format=values.get("format"), block_size=values.get("block_size"), seed=0)
    format_ = detect(path) if settings.format is None else lookup(settings.format)
    dataset = format_.read(path, settings)
    dataset.prepare(ReadOptions())
    errors = FileErrors(path)
    conversations = [] if dataset.verbatim else list(dataset.read(errors))
    errors.raise_any()
    if not any(turn.prompt is not None for each in conversations for turn in each.turns):
        raise UserError(f"'{path}' ({format_.name}) has no 'input_length', so it cannot be analyzed as a trace.")
    statistics = trace_statistics(conversations, dataset.block_size)
    if values.get("json"):
        print_json(statistics)
    else:
        print("\n".join(_lines(statistics)))
    return 0


def _lines(statistics: TraceStatistics) -> list[str]:
    lines = [
        f"Requests                {statistics.requests:,}, {counted(statistics.sessions, 'session')} of several requests"
    ]
    if (arrivals := statistics.arrivals) is not None:
        rate = "" if arrivals.rate is None else f", {arrivals.rate:,.2f} requests/s"
        lines.append(
            f"Arrivals                {arrivals.duration_s:,.2f} s{rate}, at most {arrivals.peak_rate:,} in one second"
        )
    lines += _row("Input length (tokens)", statistics.input_length)
    lines += _row("Output length (tokens)", statistics.output_length)
    if (reuse := statistics.reuse) is None:
        return [*lines, "Reuse                   the trace has no hash_ids"]
    return [
        *lines,
        *_row("Shared prefix (tokens)", reuse.shared_length),
        *_row("Unique part (tokens)", reuse.unique_length),
        (
            f"Blocks                  {reuse.blocks:,} of {reuse.block_size:,} tokens, {reuse.distinct_blocks:,} distinct, "
            f"{reuse.shared_blocks:,} in several prompts"
        ),
        f"Theoretical cache hits  {reuse.cache_hit_rate:.1%} of the prompt tokens ({reuse.cached_tokens:,})",
    ]


def _row(title: str, values: Distribution | None) -> list[str]:
    if values is None:
        return []
    figures = ", ".join(f"{name} {getattr(values, name):,.1f}" for name in values.__struct_fields__)
    return [f"{title:23} {figures}"]
