"""The options of the small commands. (`profile` has a table of its own, in `settings.flags`.)"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NoReturn

from penstock.cli.terminal import Paint, columns, fit, wrap
from penstock.errors import UserError
from penstock.suggest import did_you_mean

__all__ = ["Arguments"]

_NAMES_WIDTH = 22
"""Names longer than this stand on a line of their own."""


class Arguments(argparse.ArgumentParser):
    """Takes no abbreviation, what is wrong with the words is a `UserError`, and the help looks like that of `profile`. In the
    texts, {program} is how the program was called."""

    def __init__(self, program: str, command: str, about: str, more: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"{program} {command}",
            usage=None if usage is None else usage.replace("{program}", program),
            description=about,
            epilog=more.replace("{program}", program),
            allow_abbrev=False,
        )
        self._positionals.title = "Arguments"
        self._optionals.title = "Options"

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """A word that is no option is named first: argparse would rather complain of what is missing beside it."""
        options = words[: words.index("--")] if "--" in words else words
        if {"--help", "-h"} & set(options):
            return self.parse_args(["--help"])
        for word in options:
            name = word.partition("=")[0]
            if len(name) > 1 and name.startswith("-") and name not in self._option_string_actions:
                hint = did_you_mean(name.replace("_", "-"), self._option_string_actions, f"see `{self.prog} --help`.")
                raise UserError(f"There is no option {name}; {hint}")
        return self.parse_args(words)

    def options(self) -> Iterator[argparse.Action]:
        """In the order of the help."""
        for group in self._action_groups:
            yield from (action for action in group._group_actions if action.option_strings)

    def format_help(self) -> str:
        paint = Paint()
        usage = self.format_usage().removeprefix("usage:").strip()
        parts = [f"{paint.bold('Usage:')} {usage}", fit(self.description or "")]
        for group in self._action_groups:
            if group._group_actions:
                parts.append("\n".join([paint.bold(group.title or ""), *map(_entry, group._group_actions)]))
        return "\n\n".join([*parts, fit(self.epilog or "")]) + "\n"

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")


def _entry(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    shown = f"[{value}]" if action.nargs == "?" and action.option_strings else str(value)
    names = " ".join(filter(None, (", ".join(sorted(action.option_strings, key=len, reverse=True)), shown)))
    text = "this text" if action.dest == "help" else action.help or ""
    if len(names) > _NAMES_WIDTH:
        return "\n".join([f"  {names}", *wrap(text, columns(), _NAMES_WIDTH + 4)])
    return fit(f"  {names:{_NAMES_WIDTH}}  {text}")
