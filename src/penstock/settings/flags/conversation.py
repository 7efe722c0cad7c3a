"""Flags for synthetic conversations: number of turns, delays between turns, shared prompts."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group, count, tokens

__all__ = ["CONVERSATION"]

CONVERSATION = Group(
    "Conversations",
    (
        count(
            "--conversation-turn-mean",
            "Mean number of turns in a conversation. Each request contains the earlier turns and replies.",
            "input.conversation.turns_mean",
            aliases=("--session-turns-mean",),
            default="1",
            hard_max=10_000,
            sweepable=True,
        ),
        Flag(
            "--conversation-turn-stddev",
            "float",
            "Standard deviation of the number of turns.",
            aliases=("--session-turns-stddev",),
            target="input.conversation.turns_stddev",
            metavar="N",
            default="0",
            ge=0,
            hard_max=10_000,
        ),
        Flag(
            "--conversation-turn-delay-mean",
            "float",
            "Mean delay between a reply and the next turn.",
            aliases=("--session-turn-delay-mean",),
            target="input.conversation.delay_mean_ms",
            metavar="MS",
            default="0",
            ge=0,
        ),
        Flag(
            "--conversation-turn-delay-stddev",
            "float",
            "Standard deviation of that delay.",
            aliases=("--session-turn-delay-stddev",),
            target="input.conversation.delay_stddev_ms",
            metavar="MS",
            default="0",
            ge=0,
        ),
        Flag(
            "--conversation-turn-delay-ratio",
            "float",
            "Multiply every delay between turns by this factor, including the delays in a file.",
            aliases=("--session-delay-ratio",),
            target="input.conversation.delay_ratio",
            metavar="FACTOR",
            default="1",
            ge=0,
        ),
        tokens(
            "--shared-system-prompt-length",
            "Length of one synthetic system prompt that all requests share, in addition to the prompt length.",
            "input.conversation.system_tokens",
        ),
        Flag(
            "--system-prompt",
            "str",
            "System prompt of every conversation, synthetic or from a file.",
            target="input.system",
            metavar="TEXT",
        ),
        Flag(
            "--system-prompt-file",
            "path",
            "The same, read from a file in UTF-8.",
            target="input.system_file",
            metavar="FILE",
        ),
        Flag(
            "--prompt-prefix-pool-size",
            "int",
            "Number of different texts; the first prompt of each conversation begins with one of them, drawn at random.",
            aliases=("--prefix-prompt-pool-size", "--num-prefix-prompts"),
            target="input.conversation.prefixes",
            metavar="N",
            default="0",
            ge=0,
            hard_max=1_000_000,
        ),
        Flag(
            "--prompt-prefix-length",
            "int",
            "Length of these texts, in addition to the prompt length.",
            aliases=("--prefix-prompt-length",),
            target="input.conversation.prefix_tokens",
            metavar="TOKENS",
            default="0",
            ge=0,
            hard_max=MAX_TOKENS,
        ),
        tokens(
            "--user-context-prompt-length",
            "Length of a user message, different for each conversation, that precedes its first prompt.",
            "input.conversation.context_tokens",
        ),
    ),
)
