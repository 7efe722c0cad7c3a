"""Flags for synthetic rankings: queries and the passages to rank."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group

__all__ = ["RANKINGS"]

RANKINGS = Group(
    "Synthetic rankings",
    (
        Flag(
            "--rankings-passages-mean",
            "int",
            "Mean number of passages that each request of a rankings endpoint type has.",
            target="input.rankings.passages_mean",
            metavar="N",
            default="1",
            ge=1,
            hard_max=100_000,
        ),
        Flag(
            "--rankings-passages-stddev",
            "int",
            "Standard deviation of the number of passages.",
            target="input.rankings.passages_stddev",
            metavar="N",
            default="0",
            ge=0,
            hard_max=100_000,
        ),
        Flag(
            "--rankings-passages-prompt-token-mean",
            "int",
            "Mean length of a passage, in tokens.",
            target="input.rankings.passage_tokens_mean",
            metavar="TOKENS",
            default="550",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
        Flag(
            "--rankings-passages-prompt-token-stddev",
            "int",
            "Standard deviation of the length of a passage, in tokens.",
            target="input.rankings.passage_tokens_stddev",
            metavar="TOKENS",
            default="0",
            ge=0,
            hard_max=MAX_TOKENS,
        ),
        Flag(
            "--rankings-query-prompt-token-mean",
            "int",
            "Mean length of a query, in tokens.",
            target="input.rankings.query_tokens_mean",
            metavar="TOKENS",
            default="550",
            ge=1,
            hard_max=MAX_TOKENS,
        ),
        Flag(
            "--rankings-query-prompt-token-stddev",
            "int",
            "Standard deviation of the length of a query, in tokens.",
            target="input.rankings.query_tokens_stddev",
            metavar="TOKENS",
            default="0",
            ge=0,
            hard_max=MAX_TOKENS,
        ),
    ),
)
