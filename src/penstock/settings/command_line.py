"""The description of a command, which the parser, `--help` and the completion scripts all read."""

from __future__ import annotations

from typing import NamedTuple

from penstock.settings.flags.flag import Flag, Group, Positional, UnsupportedFlag, read_flags
from penstock.table_rows import table_rows

HELP = Flag("--help", "bool", "Print this text.", aliases=("-h",))
"""The flag --help of every command. `main` looks for it before parsing, so that it works on a command line with mistakes."""


def options(table: str) -> tuple[Group, ...]:
    """Return the group of options of a command: the rows of the table and --help."""
    return (Group("Options", (*read_flags(table), HELP)),)


def examples(table: str) -> tuple[tuple[str, str], ...]:
    """Return the examples of a command: lines with their purposes, and below each its words after the program name."""
    return tuple((purpose, words) for (purpose,), words in table_rows(table))


class CommandLine(NamedTuple):
    """Everything that a command accepts, and its help. {program} in a text is the name the program was called by."""

    name: str
    about: str
    groups: tuple[Group, ...] = (Group("Options", (HELP,)),)
    positionals: tuple[Positional, ...] = ()
    inherited: tuple[Group, ...] = ()
    """Groups of another command that this command accepts too. Its help does not repeat them."""
    unsupported: tuple[UnsupportedFlag, ...] = ()
    usage: tuple[str, ...] = ()
    """Usage lines without the command name; empty: derive one line from the rows."""
    details: str = ""
    exit_statuses: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    """For each example, its purpose and its words after the program name."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(flag for group in (*self.inherited, *self.groups) for flag in group.flags)
