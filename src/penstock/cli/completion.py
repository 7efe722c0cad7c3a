"""`completion bash|zsh|fish`: a completion script, drawn from the tables."""

from __future__ import annotations

import sys
from argparse import Action
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from penstock.cli.commands import COMMANDS, Command
from penstock.cli.help import UNBUILT_FLAG
from penstock.cli.terminal import fit
from penstock.errors import UserError
from penstock.settings.flags import FLAGS, Flag
from penstock.suggest import did_you_mean

__all__ = ["SHELLS", "run", "script"]

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("penstock", "aiperf")

_COMMANDS = (*COMMANDS, Command("help", "print the help of a command", "help"))
_COMMAND_NAMES = tuple(command.name for command in _COMMANDS)
_TAKES_FOLDERS = ("compare", "report", "verify")

_HELP = """\
Usage: {program} completion bash|zsh|fish

Print a script that completes the commands, options and choices of penstock and aiperf.

  bash  source <({program} completion bash), in ~/.bashrc
  zsh   source <({program} completion zsh), in ~/.zshrc after compinit
  fish  {program} completion fish > ~/.config/fish/completions/{program}.fish
"""


class Offer(NamedTuple):
    """An option, and what can be said of the value behind it."""

    spellings: tuple[str, ...]
    help: str
    choices: tuple[str, ...] = ()
    value: bool = False
    path: bool = False
    """Files are offered for the value."""


HELP = Offer(("--help", "-h"), "help of the command")


def run(words: list[str], program: str) -> int:
    if "--help" in words or "-h" in words:
        sys.stdout.write(fit(_HELP.format(program=program)) + "\n")
        return 0
    if len(words) != 1:
        raise UserError("Name one shell: bash, zsh or fish.")
    sys.stdout.write(script(words[0]))
    return 0


def script(shell: str) -> str:
    if shell not in SHELLS:
        raise UserError(
            f"There is no completion for {shell!r}; {did_you_mean(shell, SHELLS, 'name bash, zsh or fish.')}"
        )
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()
    return "\n".join(lines) + "\n"


def _words(command: Command) -> tuple[str, ...]:
    """What may follow the command besides options."""
    match command.name:
        case "help":
            return _COMMAND_NAMES
        case "completion":
            return SHELLS
        case "gateway":
            from penstock.cli.gateway import SUBCOMMAND

            return (SUBCOMMAND,)
    return ()


def _offers(command: Command) -> list[Offer]:
    match command.name:
        case "completion" | "help" | "version":
            return []
        case "profile":
            return [*map(_of_flag, FLAGS), Offer((UNBUILT_FLAG,), "AIPerf's options that are not there yet"), HELP]
        case "compare":
            return [*map(_of_flag, FLAGS), Offer(("--json",), "print the comparison as JSON"), HELP]
    return [_of_action(action) for action in import_module(f"penstock.cli.{command.module}").arguments("").options()]


def _of_flag(flag: Flag) -> Offer:
    choices = _formats() if flag.target == "input.format" else flag.choices
    path = flag.kind == "path" or flag.target == "tokenizer.name"
    return Offer(flag.spellings, flag.help, choices, flag.kind != "bool", path)


def _of_action(action: Action) -> Offer:
    choices = _formats() if action.dest == "custom_dataset_type" else ()
    text = HELP.help if action.dest == "help" else action.help or ""
    # A value that may be left out is followed by options, too, and they are what is looked for.
    return Offer(tuple(action.option_strings), text, choices, action.nargs is None, path=True)


def _formats() -> tuple[str, ...]:
    from penstock.datasets.registry import FORMATS

    return tuple(each.name for each in FORMATS)


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
        offers = _offers(command)
        yield f"        {command.name})"
        yield '            case "$prev" in'
        for offer in offers:
            if offer.choices:
                yield f'            {"|".join(offer.spellings)}) words="{" ".join(offer.choices)}" ;;'
        if taking := _taking_what_is_not_listed(offers):
            yield f"            {'|'.join(taking)}) return ;;"
        yield f'            *) words="{" ".join([*_words(command), *_long(offers)])}" ;;'
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
    yield f"        commands=({' '.join(_quoted(f'{command.name}:{command.line}') for command in _COMMANDS)})"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    case $words[2] in"
    for command in _COMMANDS:
        offers = _offers(command)
        yield f"    {command.name})"
        yield "        case $words[CURRENT-1] in"
        for offer in offers:
            if offer.choices:
                yield f"        {'|'.join(offer.spellings)}) compadd {' '.join(offer.choices)}; return ;;"
        if taking := _taking_what_is_not_listed(offers):
            yield f"        {'|'.join(taking)}) _files; return ;;"
        yield "        *) ;;"
        yield "        esac"
        if words := _words(command):
            yield f"        compadd {' '.join(words)}"
        if command.name in _TAKES_FOLDERS:
            yield "        _files -/"
        yield "        options=("
        for offer in offers:
            for spelling in offer.spellings:
                yield f"            {_quoted(f'{spelling}:{offer.help}')}"
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
            yield f"complete -c {program} -n __fish_use_subcommand -a {command.name} -d {_quoted(command.line, fish=True)}"
            # `penstock help mock` has seen both words: it is the first one that counts.
            seen = f"complete -c {program} -n '__fish_penstock_command {command.name}'"
            if words := _words(command):
                yield f"{seen} -f -a '{' '.join(words)}'"
            for offer in _offers(command):
                names = " ".join(map(_fish_name, offer.spellings))
                yield f"{seen} {names}{_fish_value(offer)} -d {_quoted(offer.help, fish=True)}"


def _fish_name(spelling: str) -> str:
    if spelling.startswith("--"):
        return f"-l {spelling[2:]}"
    return f"-s {spelling[1:]}" if len(spelling) == 2 else f"-o {spelling[1:]}"


def _fish_value(offer: Offer) -> str:
    if offer.choices:
        return f" -x -a '{' '.join(offer.choices)}'"
    if not offer.value:
        return ""
    return " -r" if offer.path else " -x"


def _long(offers: list[Offer]) -> list[str]:
    return [spelling for offer in offers for spelling in offer.spellings if spelling.startswith("--")]


def _taking_what_is_not_listed(offers: list[Offer]) -> list[str]:
    """The shell then offers files."""
    return [spelling for offer in offers if offer.value and not offer.choices for spelling in offer.spellings]


def _quoted(text: str, *, fish: bool = False) -> str:
    return "'" + text.replace("'", "\\'" if fish else "'\\''") + "'"
