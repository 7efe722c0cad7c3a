"""Synthetic conversations: how many turns, how long between them, and what all of them begin with."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group

__all__ = ["CONVERSATION"]

CONVERSATION = Group(
    "Conversations",
    (
        Flag(
            "--conversation-turn-mean",
            "int",
            "Mean number of turns in a conversation. Each turn carries those before it and the server's replies.",
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
            "Mean pause between a reply and the next turn.",
            aliases=("--session-turn-delay-mean",),
            target="input.conversation.delay_mean_ms",
            metavar="MS",
            default="0",
            ge=0,
        ),
        Flag(
            "--conversation-turn-delay-stddev",
            "float",
            "Standard deviation of that pause.",
            aliases=("--session-turn-delay-stddev",),
            target="input.conversation.delay_stddev_ms",
            metavar="MS",
            default="0",
            ge=0,
        ),
        Flag(
            "--conversation-turn-delay-ratio",
            "float",
            "Multiply every pause by this, also those in a file.",
            aliases=("--session-delay-ratio",),
            target="input.conversation.delay_ratio",
            metavar="FACTOR",
            default="1",
            ge=0,
        ),
        Flag(
            "--shared-system-prompt-length",
            "int",
            "Give all requests one synthetic system prompt of this length, on top of the prompt length.",
            target="input.conversation.system_tokens",
            metavar="TOKENS",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
        Flag(
            "--user-context-prompt-length",
            "int",
            "Begin each conversation with a user message of its own of this length, on top of the prompt length.",
            target="input.conversation.context_tokens",
            metavar="TOKENS",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
    ),
)
