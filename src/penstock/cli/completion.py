"""`completion`: print a completion script, made from the descriptions of the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

from penstock.cli.commands import COMMANDS, Command
from penstock.cli.help import flag_help
from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Flag, Positional

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("penstock", "aiperf")

COMMAND_LINE = CommandLine(
    "completion",
    "Print a script that completes the commands, options and choices of penstock and aiperf.",
    positionals=(Positional("SHELL", "the shell to complete in: bash, zsh or fish", "shell", "enum", SHELLS),),
    details="""\
Where to install it
  bash  source <({program} completion bash), in ~/.bashrc
  zsh   source <({program} completion zsh), in ~/.zshrc after compinit
  fish  {program} completion fish > ~/.config/fish/completions/{program}.fish
""",
)

_COMMANDS = (*COMMANDS, Command("help", "print the help of a command"))
_COMMAND_NAMES = tuple(command.name for command in _COMMANDS)
_HELP = CommandLine("help", "", positionals=(Positional("COMMAND", "a command", "command", "enum", _COMMAND_NAMES),))


def run(parsed: ParsedArguments) -> int:
    sys.stdout.write(script(parsed.values["shell"]))
    return 0


def script(shell: str) -> str:
    return "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()) + "\n"


def _command_line(command: Command) -> CommandLine:
    if command.name == "help":
        return _HELP
    line: CommandLine = import_module(command.module).COMMAND_LINE
    return line


def _flags(command: Command) -> tuple[Flag, ...]:
    flags = _command_line(command).flags
    return () if flags == (HELP,) else flags


def _words(command: Command) -> tuple[str, ...]:
    """Return the subcommands and positional choices of a command."""
    rows = _command_line(command).positionals
    return (*command.subcommands, *(choice for row in rows for choice in row.choices))


def _choices(flag: Flag) -> tuple[str, ...]:
    if flag.name != "--custom-dataset-type":
        return flag.choices
    from penstock.datasets.format_table import FORMAT_MODULES

    return tuple(FORMAT_MODULES)


def _bash() -> Iterator[str]:
    yield "_penstock() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield "    COMPREPLY=()"
    yield '    if [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield '    if [ "$cur" = "=" ]; then cur=""; fi'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(_COMMAND_NAMES)} --help --version"'
    yield "    else"
    yield '        case "${COMP_WORDS[1]}" in'
    for command in _COMMANDS:
        flags = _flags(command)
        yield f"        {command.name})"
        yield '            case "$prev" in'
        yield from _value_cases(flags, '            {}) words="{}" ;;', "            {}) return ;;")
        yield f'            *) words="{" ".join([*_words(command), *_long(flags)])}" ;;'
        yield "            esac ;;"
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield f"complete -o default -F _penstock {' '.join(PROGRAMS)}"


def _zsh() -> Iterator[str]:
    yield f"#compdef {' '.join(PROGRAMS)}"
    yield "_penstock() {"
    yield "    local -a commands options"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        commands=({' '.join(_quoted(f'{command.name}:{command.summary}') for command in _COMMANDS)})"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    case $words[2] in"
    for command in _COMMANDS:
        flags = _flags(command)
        yield f"    {command.name})"
        yield "        case $words[CURRENT-1] in"
        yield from _value_cases(flags, "        {}) compadd {}; return ;;", "        {}) _files; return ;;")
        yield "        *) ;;"
        yield "        esac"
        if words := _words(command):
            yield f"        compadd {' '.join(words)}"
        if any(row.kind == "path" for row in _command_line(command).positionals):
            yield "        _files -/"
        yield "        options=("
        for flag in flags:
            for spelling in flag.spellings:
                yield f"            {_quoted(f'{spelling}:{flag_help(flag)}')}"
        yield "        )"
        yield "        _describe -o option options ;;"
    yield "    esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_penstock" ]; then'
    yield '    _penstock "$@"'
    yield "else"
    yield f"    compdef _penstock {' '.join(PROGRAMS)}"
    yield "fi"


def _fish() -> Iterator[str]:
    yield "function __fish_penstock_command"
    yield "    set -l words (commandline -opc)"
    yield '    test (count $words) -gt 1; and test "$words[2]" = $argv[1]'
    yield "end"
    for program in PROGRAMS:
        yield f"complete -c {program} -n __fish_use_subcommand -f"
        for command in _COMMANDS:
            yield f"complete -c {program} -n __fish_use_subcommand -a {command.name} -d {_quoted(command.summary, fish=True)}"
            # The first word decides: `penstock help mock` contains two command names.
            condition = f"complete -c {program} -n '__fish_penstock_command {command.name}'"
            if words := _words(command):
                yield f"{condition} -f -a '{' '.join(words)}'"
            for flag in _flags(command):
                names = " ".join(map(_fish_name, flag.spellings))
                yield f"{condition} {names}{_fish_value(flag)} -d {_quoted(flag_help(flag), fish=True)}"


def _fish_name(spelling: str) -> str:
    if spelling.startswith("--"):
        return f"-l {spelling[2:]}"
    return f"-s {spelling[1:]}" if len(spelling) == 2 else f"-o {spelling[1:]}"


def _fish_value(flag: Flag) -> str:
    if choices := _choices(flag):
        return f" -x -a '{' '.join(choices)}'"
    if not _needs_value(flag):
        return ""
    return " -r" if flag.kind == "path" or flag.name == "--tokenizer" else " -x"


def _long(flags: tuple[Flag, ...]) -> list[str]:
    return [spelling for flag in flags for spelling in flag.spellings if spelling.startswith("--")]


def _value_cases(flags: tuple[Flag, ...], with_choices: str, with_free_value: str) -> Iterator[str]:
    """Yield the branches of a `case` for the values of flags. After a flag that takes any value, the shell completes files."""
    for flag in flags:
        if choices := _choices(flag):
            yield with_choices.format("|".join(flag.spellings), " ".join(choices))
    free = [spelling for flag in flags if _needs_value(flag) and not _choices(flag) for spelling in flag.spellings]
    if free:
        yield with_free_value.format("|".join(free))


def _needs_value(flag: Flag) -> bool:
    """False if options may follow directly, so that completion should offer options."""
    return flag.kind != "bool" and flag.implied is None


def _quoted(text: str, *, fish: bool = False) -> str:
    return "'" + text.replace("'", "\\'" if fish else "'\\''") + "'"
