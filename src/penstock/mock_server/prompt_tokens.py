"""The mock's tokens of a prompt: how many a text has, and where they end.

Tokens are estimated, because a tokenizer would take longer than the rest of the reply. The estimate for a text is the sum
of a cost of each character, so texts that begin alike have the same first tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

PROSE_TOKEN_COST = 30
_PROSE_COSTS = bytes({ord(" "): 31, ord("."): 11, ord(","): 11}.get(code, 1) for code in range(256))
"""The cost of each character of prose, by its code."""


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of English text: within 10 % of the builtin vocabulary for synthetic prompts of 100 tokens."""
    size, spaces = len(text), text.count(" ")
    if 14 * spaces <= size:  # not prose
        return (3 * size + 13) // 14
    return 1 + spaces + (size + 10 * (text.count(".") + text.count(",")) + 29) // 30


def token_ends(text: str) -> Callable[[int], int]:
    """Return a function that gives the index in `text` at which its first k tokens end."""
    if 14 * text.count(" ") <= len(text):
        return lambda k: 14 * k // 3
    costs = list(accumulate(text.encode("latin-1", "replace").translate(_PROSE_COSTS)))
    # The first token of prose has no characters.
    return lambda k: bisect_right(costs, PROSE_TOKEN_COST * (k - 1))
