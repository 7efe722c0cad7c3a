"""Help texts, rendered from the descriptions of the commands."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.commands import COMMANDS
from penstock.cli.terminal import Paint, columns, fit, wrap
from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flags.flag import Flag, Positional

_NAMES_WIDTH = 22
"""Longer names get a line of their own, above their text."""
_TEXT_COLUMN = _NAMES_WIDTH + 4


def overview(program: str) -> str:
    from penstock.cli.profile import COMMAND_LINE as PROFILE

    paint = Paint()
    width = max(len(command.name) for command in COMMANDS)
    lines = [
        f"{paint.bold('Usage:')} {program} COMMAND [options]",
        "",
        "Benchmark LLM servers, compare them, and serve them through a gateway.",
        "",
        paint.bold("Commands"),
        *(f"  {command.name:{width}}  {command.summary}" for command in COMMANDS),
        "",
        paint.bold("Options"),
        "  --help, -h  print this text; after a command, print the help of the command",
        "  --version   print the version",
        "",
        *_examples(PROFILE, program, paint),
    ]
    return fit("\n".join(lines)) + "\n"


def help_text(command: CommandLine, program: str) -> str:
    paint = Paint()
    options = ["[options]"] if command.flags != (HELP,) else []
    forms = command.usage or (" ".join([*(row.name for row in command.positionals), *options]),)
    usage = [f"{program} {command.name} {form}".rstrip() for form in forms]
    parts = [
        f"{paint.bold('Usage:')} " + "\n       ".join(usage),
        fit(command.about.replace("{program}", program)),
        *_sections([("Arguments", command.positionals), *command.groups], paint),
        fit(command.details.replace("{program}", program)),
    ]
    if command.exit_statuses:
        statuses = [fit(f"  {status:>3}  {meaning}") for status, meaning in command.exit_statuses]
        parts.append("\n".join([paint.bold("Exit status"), *statuses]))
    if command.examples:
        parts.append("\n".join(_examples(command, program, paint)))
    return "\n\n".join(filter(None, parts)) + "\n"


def flag_help(flag: Flag) -> str:
    """Return the help of a flag, with the dataset formats if it lists them."""
    if "{formats}" not in flag.help:
        return flag.help
    from penstock.datasets.format_table import FORMAT_MODULES

    *others, last = FORMAT_MODULES
    return flag.help.replace("{formats}", f"{', '.join(others)} or {last}")


def _sections(groups: Sequence[tuple[str, Sequence[Flag | Positional]]], paint: Paint) -> list[str]:
    width = columns()
    return [
        "\n".join([paint.bold(title), *(line for row in rows for line in _entry(row, width, paint))])
        for title, rows in groups
        if rows
    ]


def _entry(row: Flag | Positional, width: int, paint: Paint) -> list[str]:
    if isinstance(row, Positional):
        names, value, text, facts = row.name, "", f"{row.help[:1].upper()}{row.help[1:]}.", ""
    else:
        names, value, text, facts = ", ".join(row.spellings), flag_value(row), flag_help(row), flag_facts(row)
    head = f"  {paint.bold(names)}{value}"
    lines = wrap(text, width, _TEXT_COLUMN)
    if facts and len(lines[-1]) + 1 + len(facts) <= width:
        lines[-1] += f" {facts}"
    else:
        lines += wrap(facts, width, _TEXT_COLUMN)
    length = len(names) + len(value)
    if length <= _NAMES_WIDTH:
        return [head + lines[0][length + 2 :], *lines[1:]]
    if length + 2 > width:
        names = names.replace(", ", ",\n  ") if len(names) + 2 > width else names
        return [f"  {paint.bold(names)}", *([f"     {value}"] if value else []), *lines]
    return [head, *lines]


def flag_value(flag: Flag) -> str:
    """Return the placeholder of the value, after a space."""
    if flag.kind == "bool":
        return ""
    value = flag.metavar or "|".join(flag.choices)
    return f" {value}" if flag.implied is None else f" [{value}]"


def flag_facts(flag: Flag) -> str:
    """Return the bounds and the default of a flag in brackets."""
    facts = ["Penstock only"] if flag.penstock_only else []
    if flag.ge is not None and flag.le is not None:
        facts.append(f"{flag.ge:g} to {flag.le:g}")
    elif flag.ge is not None:
        facts.append(f"at least {flag.ge:g}" + (", or inf" if flag.allows_inf else ""))
    elif flag.gt is not None:
        facts.append(f"more than {flag.gt:g}")
    if flag.default:
        facts.append(f"default: {flag.default}")
    return f"[{'; '.join(facts)}]" if facts else ""


def _examples(command: CommandLine, program: str, paint: Paint) -> list[str]:
    lines = [paint.bold("Examples")]
    for title, words in command.examples:
        lines += [f"  {title}:", f"    {program} {words}"]
    return lines
