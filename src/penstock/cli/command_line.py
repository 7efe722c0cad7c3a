"""The description of one command: parsing, `--help` and shell completion all read it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.settings.flags.flag import Flag, Group, Positional, UnsupportedFlag

__all__ = ["HELP", "CommandLine"]

HELP = Flag("--help", "bool", "Print this text.", aliases=("-h",))
"""A row of every command. `main` looks for it before anything is parsed, so that it works beside a mistake."""


class CommandLine(NamedTuple):
    """What one command accepts and what its help says. In the texts, {program} is the name the program was called by."""

    name: str
    about: str
    groups: tuple[Group, ...] = ()
    positionals: tuple[Positional, ...] = ()
    inherited: tuple[Group, ...] = ()
    """Options that the help of another command lists."""
    unsupported: tuple[UnsupportedFlag, ...] = ()
    usage: tuple[str, ...] = ()
    """The forms of the command, without its name, where one form derived from the table would mislead."""
    details: str = ""
    exit_statuses: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    """What each example does, and its words after the program's name."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(flag for group in (*self.inherited, *self.groups) for flag in group.flags)
