"""`profile`: benchmark a server."""

from __future__ import annotations

import sys

__all__ = ["run"]


def run(words: list[str], program: str) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if {"--help", "-h", "--help-unbuilt"} & set(options):
        from penstock.cli.help import UNBUILT_FLAG, profile_help, unbuilt_help

        sys.stdout.write(unbuilt_help(program) if UNBUILT_FLAG in options else profile_help(program))
        return 0
    from penstock.cli.read_settings import settle

    settings = settle(words, program)  # what is wrong with the words is said before the rest is imported
    from penstock.cli.run import profile

    return profile(settings)
