"""Flags for synthetic rankings: queries and the passages to rank."""

from __future__ import annotations

from penstock.settings.flags.flag import MAX_TOKENS, Flag, Group, count, tokens

__all__ = ["RANKINGS"]

RANKINGS = Group(
    "Synthetic rankings",
    (
        count(
            "--rankings-passages-mean",
            "Mean number of passages that each request of a rankings endpoint type has.",
            "input.rankings.passages_mean",
            default="1",
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
        tokens(
            "--rankings-passages-prompt-token-mean",
            "Mean length of a passage, in tokens.",
            "input.rankings.passage_tokens_mean",
            default="550",
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
        tokens(
            "--rankings-query-prompt-token-mean",
            "Mean length of a query, in tokens.",
            "input.rankings.query_tokens_mean",
            default="550",
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
