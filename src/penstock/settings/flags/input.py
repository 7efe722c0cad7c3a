"""What is sent: a file or synthetic prompts, their lengths, and the tokenizer that counts them."""

from __future__ import annotations

from penstock.settings.flags.flag import MOST_TOKENS, Flag, Group

__all__ = ["INPUT", "LENGTHS", "TOKENIZER"]

INPUT = Group(
    "Input",
    (
        Flag(
            "--input-file",
            "path",
            "Take the prompts from this file or folder. Without it they are synthetic.",
            target="input.file",
            metavar="PATH",
        ),
        Flag(
            "--custom-dataset-type",
            "str",
            "The format of the input file: single_turn, multi_turn, inputs_json, raw_payload or mooncake_trace.",
            target="input.format",
            metavar="FORMAT",
            default="found out from the file",
        ),
        Flag(
            "--sessions",
            "list",
            "Of a replay, send only the sessions with these ids: a comma list, or the flag repeated.",
            target="input.sessions",
            metavar="ID[,ID]",
            commas=True,
            own=True,
        ),
        Flag(
            "--dataset-sampling-strategy",
            "enum",
            "The order in which prompts are used: as they come, in shuffled rounds, or drawn at random.",
            target="input.sampling",
            choices=("sequential", "shuffle", "random"),
            default="sequential",
        ),
        Flag(
            "--num-dataset-entries",
            "int",
            "How many different synthetic prompts to make.",
            aliases=("--num-prompts",),
            target="input.entries",
            metavar="N",
            default="derived from the load",
            ge=1,
        ),
        Flag(
            "--prompt-batch-size",
            "int",
            "Texts in one synthetic request.",
            aliases=("--batch-size-text", "--batch-size", "-b"),
            target="input.batch",
            metavar="N",
            default="1",
            ge=1,
            most=10_000,
        ),
        Flag(
            "--random-seed",
            "int",
            "With the same seed, prompts, order and arrival times are the same in every run.",
            target="input.seed",
            metavar="N",
            default="a new one for each run",
            ge=0,
            most=2**63 - 1,
        ),
    ),
)

LENGTHS = Group(
    "Input and output length",
    (
        Flag(
            "--prompt-input-tokens-mean",
            "int",
            "Mean length of a synthetic prompt, in tokens.",
            aliases=("--synthetic-input-tokens-mean", "--isl"),
            target="input.input_tokens_mean",
            metavar="TOKENS",
            default="550",
            ge=1,
            most=MOST_TOKENS,
            sweeps=True,
        ),
        Flag(
            "--prompt-input-tokens-stddev",
            "float",
            "Standard deviation of the prompt length; 0 makes all alike.",
            aliases=("--synthetic-input-tokens-stddev", "--isl-stddev"),
            target="input.input_tokens_stddev",
            metavar="TOKENS",
            default="0",
            ge=0,
            most=MOST_TOKENS,
            sweeps=True,
        ),
        Flag(
            "--prompt-output-tokens-mean",
            "int",
            "Mean of the reply length limit that is sent, in tokens. Without it no limit is sent.",
            aliases=("--output-tokens-mean", "--osl"),
            target="input.output_tokens_mean",
            metavar="TOKENS",
            default="no limit",
            ge=1,
            most=MOST_TOKENS,
            sweeps=True,
        ),
        Flag(
            "--prompt-output-tokens-stddev",
            "float",
            "Standard deviation of the reply length limit.",
            aliases=("--output-tokens-stddev", "--osl-stddev"),
            target="input.output_tokens_stddev",
            metavar="TOKENS",
            default="0",
            ge=0,
            most=MOST_TOKENS,
            sweeps=True,
        ),
    ),
)

TOKENIZER = Group(
    "Tokenizer",
    (
        Flag(
            "--tokenizer",
            "str",
            "Counts tokens: a folder, a tokenizer.json, a Hugging Face id, tekken, or builtin, which needs no network.",
            target="tokenizer.name",
            metavar="NAME",
            default="the model's own, else builtin",
        ),
        Flag(
            "--tokenizer-revision",
            "str",
            "Branch, tag or commit of a tokenizer on the Hugging Face hub.",
            target="tokenizer.revision",
            metavar="REVISION",
            default="main",
        ),
    ),
)
