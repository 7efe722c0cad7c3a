"""Flags for the input: a file or synthetic prompts, prompt and reply lengths, the tokenizer."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group, count, tokens

__all__ = ["INPUT", "LENGTHS", "TOKENIZER"]

INPUT = Group(
    "Input",
    (
        Flag(
            "--config",
            "path",
            "Read the settings from this YAML file; other flags override it. `config init` writes one to begin with.",
            aliases=("-f",),
            target="config_file",
            metavar="FILE",
        ),
        Flag(
            "--input-file",
            "path",
            "Read the prompts from this file or folder. Without this flag, prompts are synthetic.",
            target="input.file",
            metavar="PATH",
        ),
        Flag(
            "--custom-dataset-type",
            "str",
            "Format of the input file: {formats}.",
            target="input.format",
            metavar="FORMAT",
            default="detected from the file",
        ),
        Flag(
            "--public-dataset",
            "enum",
            "Send the prompts of a dataset on the Hugging Face hub. It is downloaded into the hub's cache once (670 MB).",
            target="input.public",
            choices=("sharegpt",),
        ),
        Flag(
            "--sessions",
            "list",
            "Send only the sessions of the file with these ids: a comma list, or repeat the flag.",
            target="input.sessions",
            metavar="ID[,ID]",
            comma_separated=True,
            penstock_only=True,
        ),
        Flag(
            "--dataset-sampling-strategy",
            "enum",
            "Order of the prompts: as in the file, shuffled in every round, or drawn at random.",
            target="input.sampling",
            choices=("sequential", "shuffle", "random"),
            default="sequential",
        ),
        count(
            "--num-dataset-entries",
            "Number of different synthetic prompts, of requests drawn from a random_pool (by default 100), or of prompts of a "
            "sharegpt file (by default 1000).",
            "input.entries",
            aliases=("--num-prompts",),
            default="derived from the load",
        ),
        count(
            "--prompt-batch-size",
            "Number of texts in one synthetic request.",
            "input.batch",
            aliases=("--batch-size-text", "--batch-size", "-b"),
            default="1",
            hard_max=10_000,
        ),
        Flag(
            "--prompt-corpus",
            "enum",
            "What synthetic prompts are made of: lines of Shakespeare's sonnets, program code, or random words of the "
            "tokenizer's vocabulary.",
            target="input.corpus",
            choices=("sonnet", "coding", "random"),
            default="English sentences",
        ),
        Flag(
            "--cache-bust",
            "enum",
            "Put a marker into each conversation so that a prefix cache does not find it: system_prefix, system_suffix, "
            "first_turn_prefix or first_turn_suffix; in the warmup only: warmup_isolation_system or "
            "warmup_isolation_first_turn.",
            target="input.cache_bust",
            metavar="PLACE",
            choices=(
                "none",
                "system_prefix",
                "system_suffix",
                "first_turn_prefix",
                "first_turn_suffix",
                "warmup_isolation_system",
                "warmup_isolation_first_turn",
            ),
            default="none",
        ),
        Flag(
            "--random-seed",
            "int",
            "Seed for prompts, their order and arrival times: equal seeds give equal runs.",
            target="input.seed",
            metavar="N",
            default="a new seed for each run",
            ge=0,
            hard_max=2**63 - 1,
        ),
    ),
)

LENGTHS = Group(
    "Input and output length",
    (
        tokens(
            "--prompt-input-tokens-mean",
            "Mean length of a synthetic prompt, in tokens.",
            "input.input_tokens_mean",
            aliases=("--synthetic-input-tokens-mean", "--isl"),
            default="550",
            sweepable=True,
            short="isl",
        ),
        Flag(
            "--prompt-input-tokens-stddev",
            "float",
            "Standard deviation of the prompt length; with 0 all prompts have the mean length.",
            aliases=("--synthetic-input-tokens-stddev", "--isl-stddev"),
            target="input.input_tokens_stddev",
            metavar="TOKENS",
            default="0",
            ge=0,
            hard_max=MAX_TOKENS,
            sweepable=True,
            short="isl_stddev",
        ),
        tokens(
            "--prompt-input-tokens-block-size",
            "Number of tokens that each of the hash_ids of a trace stands for.",
            "input.block_size",
            aliases=("--synthetic-input-tokens-block-size", "--isl-block-size"),
            default="512, and 16 for bailian_trace",
        ),
        tokens(
            "--prompt-output-tokens-mean",
            "Mean of the reply length limit in each request, in tokens. Without this flag, requests have no limit.",
            "input.output_tokens_mean",
            aliases=("--output-tokens-mean", "--osl"),
            default="no limit",
            sweepable=True,
            short="osl",
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
            hard_max=MAX_TOKENS,
            sweepable=True,
            short="osl_stddev",
        ),
        Flag(
            "--seq-dist",
            "str",
            "Pairs of prompt and reply length in tokens, each with its percentage of the requests: 256,128:40;512,256:60. "
            "256|10 has a standard deviation of 10.",
            aliases=("--sequence-distribution",),
            target="input.length_pairs",
            metavar="PAIRS",
        ),
        Flag(
            "--random-range-ratio",
            "str",
            "Draw prompt and reply lengths uniformly from mean x (1 - ratio) to mean x (1 + ratio), as vLLM does. "
            '{"input": 0.3, "output": 0.5} sets two ratios.',
            target="input.range_ratio",
            metavar="RATIO",
        ),
        Flag(
            "--random-corpus-style",
            "enum",
            "Range of --random-range-ratio: around the mean (vllm), or from mean x ratio to the mean (sglang).",
            target="input.range_style",
            choices=("vllm", "sglang"),
            default="vllm",
        ),
    ),
)

TOKENIZER = Group(
    "Tokenizer",
    (
        Flag(
            "--tokenizer",
            "str",
            "Tokenizer that counts tokens: a folder, a tokenizer.json, a Hugging Face id, tekken, or builtin (no network).",
            target="tokenizer.name",
            metavar="NAME",
            default="the model's tokenizer, else builtin",
        ),
        Flag(
            "--tokenizer-revision",
            "str",
            "Branch, tag or commit of a tokenizer on the Hugging Face hub.",
            target="tokenizer.revision",
            metavar="REVISION",
            default="main",
        ),
        Flag(
            "--apply-chat-template",
            "bool",
            "Count input tokens with the tokenizer's chat template, and make synthetic prompts shorter by what it adds.",
            target="tokenizer.apply_chat_template",
        ),
    ),
)
