"""Write docs/flags.md from the flag tables of the commands. With --check, fail if the page is out of date."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from penstock.cli.commands import COMMANDS
from penstock.cli.help import flag_facts, flag_help, flag_value
from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flags.flag import Flag

HEAD = """\
# All commands and flags

`aiperf` and `penstock` are the same program. `aiperf COMMAND --help` prints the flags of a command in the terminal. The
[page about AIPerf](aiperf.md) lists the flags of AIPerf that Penstock does not have.
"""


def page() -> str:
    names = [
        name for command in COMMANDS for name in (command.name, *(f"{command.name} {s}" for s in command.subcommands))
    ]
    return "\n".join([HEAD, *(part for name in names for part in _command(name))])


def _command(name: str) -> Iterator[str]:
    line: CommandLine = import_module(f"penstock.cli.{name.replace('-', '_').replace(' ', '_')}").COMMAND_LINE
    yield f"## {name}\n\n{_text(line.about)}\n"
    if line.positionals:
        yield _table(
            "argument", [(f"`{row.name}`", f"{row.help[:1].upper()}{row.help[1:]}.") for row in line.positionals]
        )
    for title, flags in line.groups:
        rows = [(_names(flag), f"{_text(flag_help(flag))} {_text(flag_facts(flag))}") for flag in flags if flag != HELP]
        if rows:
            yield (f"### {title}\n\n" if len(line.groups) > 1 else "") + _table("flag", rows)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        [f"| {title} | meaning |", "|---|---|", *(f"| {name} | {text.strip()} |" for name, text in rows), ""]
    )


def _names(flag: Flag) -> str:
    value = flag_value(flag).replace("|", "\\|")
    return ", ".join(f"`{spelling}{value}`" for spelling in flag.spellings)


def _text(text: str) -> str:
    """Escape what Markdown would read as a table cell, an HTML tag or a reference."""
    text = text.replace("{program}", "penstock").replace("\n", " ")
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[").replace("_", "\\_")


if __name__ == "__main__":
    target = Path(__file__).parent.parent / "docs" / "flags.md"
    if "--check" in sys.argv:
        raise SystemExit(target.read_text() != page())
    target.write_text(page())
