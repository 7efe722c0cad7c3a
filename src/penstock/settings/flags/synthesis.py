"""Flags that change a trace before it is sent."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group, count, tokens

__all__ = ["SYNTHESIS"]


SYNTHESIS = Group(
    "Changes of a trace",
    (
        Flag(
            "--synthesis-speedup-ratio",
            "float",
            "Divide the timestamps and delays of a trace by this factor.",
            target="input.synthesis.speedup",
            metavar="FACTOR",
            default="1",
            gt=0,
            hard_max=1_000_000,
        ),
        Flag(
            "--synthesis-prefix-len-multiplier",
            "float",
            "Factor for the length of the leading blocks that several prompts share.",
            target="input.synthesis.prefix_length",
            metavar="FACTOR",
            default="1",
            ge=0,
            hard_max=1000,
        ),
        count(
            "--synthesis-prefix-root-multiplier",
            "Divide the conversations at random among this number of copies of the shared blocks.",
            "input.synthesis.roots",
            default="1",
            hard_max=1_000_000,
        ),
        Flag(
            "--synthesis-prompt-len-multiplier",
            "float",
            "Factor for the length of the rest of each prompt, which no other prompt has.",
            target="input.synthesis.prompt_length",
            metavar="FACTOR",
            default="1",
            ge=0,
            hard_max=1000,
        ),
        Flag(
            "--synthesis-output-len-multiplier",
            "float",
            "Factor for the reply lengths of a trace.",
            target="input.synthesis.output_length",
            metavar="FACTOR",
            default="1",
            ge=0,
            hard_max=1000,
        ),
        tokens(
            "--synthesis-max-isl",
            "Leave out requests of a trace with a longer prompt, after the other changes.",
            "input.synthesis.max_input",
            default="no limit",
        ),
        tokens(
            "--synthesis-max-osl",
            "Upper limit of the reply lengths of a trace.",
            "input.synthesis.max_output",
            default="no limit",
        ),
    ),
)
