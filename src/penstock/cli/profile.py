"""`profile`: benchmark a server."""

from __future__ import annotations

import sys

__all__ = ["run"]


def run(words: list[str], program: str) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if "--help" in options or "-h" in options:
        from penstock.cli.help import profile_help

        sys.stdout.write(profile_help(program))
        return 0
    from penstock.cli.settle import settle

    settings = settle(words, program)  # what is wrong with the words is said before the rest is imported
    from penstock.cli.running import profile

    return profile(settings)
