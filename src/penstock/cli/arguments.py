"""The options of the small commands. (`profile` has a table of its own, in `settings.flags`.)"""

from __future__ import annotations

import argparse
from typing import NoReturn

from penstock.errors import UserError

__all__ = ["Arguments"]


class Arguments(argparse.ArgumentParser):
    """Takes no abbreviation, and what is wrong with the words is a `UserError`. In the texts, {program} is how the program
    was called."""

    def __init__(self, program: str, command: str, about: str, more: str, usage: str | None = None) -> None:
        super().__init__(
            prog=f"{program} {command}",
            usage=None if usage is None else f"{program} {command} {usage}",
            description=about,
            epilog=more.replace("{program}", program),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")
