"""Flags for synthetic conversations: number of turns, delays between turns, shared prompts."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group

__all__ = ["CONVERSATION"]

CONVERSATION = Group(
    "Conversations",
    (
        Flag(
            "--conversation-turn-mean",
            "int",
            "Mean number of turns in a conversation. Each request contains the earlier turns and replies.",
            aliases=("--session-turns-mean",),
            target="input.conversation.turns_mean",
            metavar="N",
            default="1",
            ge=1,
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
        Flag(
            "--shared-system-prompt-length",
            "int",
            "Length of one synthetic system prompt that all requests share, in addition to the prompt length.",
            target="input.conversation.system_tokens",
            metavar="TOKENS",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
        Flag(
            "--user-context-prompt-length",
            "int",
            "Length of a user message, different for each conversation, that precedes its first prompt.",
            target="input.conversation.context_tokens",
            metavar="TOKENS",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
    ),
)
