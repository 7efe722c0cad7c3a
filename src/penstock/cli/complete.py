"""`completion bash|zsh|fish`: a completion script, drawn from the tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from penstock.cli.commands import COMMANDS
from penstock.cli.terminal import fit
from penstock.errors import UserError
from penstock.settings.flags import FLAGS, Flag
from penstock.suggest import did_you_mean

__all__ = ["SHELLS", "run", "script"]

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("penstock", "aiperf")

_HELP = """\
Usage: {program} completion bash|zsh|fish

Print a script that completes the commands, options and choices of penstock and aiperf.

  bash  source <({program} completion bash), in ~/.bashrc
  zsh   source <({program} completion zsh), in ~/.zshrc after compinit
  fish  {program} completion fish > ~/.config/fish/completions/{program}.fish
"""


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


def _bash() -> Iterator[str]:
    yield "_penstock() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield "    COMPREPLY=()"
    yield '    if [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield '    if [ "$cur" = "=" ]; then cur=""; fi'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(command.name for command in COMMANDS)} --help --version"'
    yield "    else"
    yield '        case "${COMP_WORDS[1]}" in'
    yield f'        completion) words="{" ".join(SHELLS)}" ;;'
    yield "        profile)"
    yield '            case "$prev" in'
    for flag in FLAGS:
        if flag.choices:
            yield f'            {"|".join(flag.spellings)}) words="{" ".join(flag.choices)}" ;;'
    yield f"            {'|'.join(_spellings_with_values())}) return ;;"
    yield f'            *) words="{" ".join(_long_spellings())}" ;;'
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
    yield f"        commands=({' '.join(_quoted(f'{command.name}:{command.line}') for command in COMMANDS)})"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    case $words[2] in"
    yield f"    completion) compadd {' '.join(SHELLS)} ;;"
    yield "    profile)"
    yield "        case $words[CURRENT-1] in"
    for flag in FLAGS:
        if flag.choices:
            yield f"        {'|'.join(flag.spellings)}) compadd {' '.join(flag.choices)}; return ;;"
    yield f"        {'|'.join(_spellings_with_values())}) _files; return ;;"
    yield "        esac"
    yield "        options=("
    for flag in FLAGS:
        for spelling in flag.spellings:
            yield f"            {_quoted(f'{spelling}:{flag.help}')}"
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
    for program in PROGRAMS:
        yield f"complete -c {program} -n __fish_use_subcommand -f"
        for command in COMMANDS:
            yield f"complete -c {program} -n __fish_use_subcommand -a {command.name} -d {_quoted(command.line)}"
        yield f"complete -c {program} -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'"
        for flag in FLAGS:
            names = " ".join(map(_fish_name, flag.spellings))
            yield (
                f"complete -c {program} -n '__fish_seen_subcommand_from profile' {names}{_fish_value(flag)} "
                f"-d {_quoted(flag.help, fish=True)}"
            )


def _fish_name(spelling: str) -> str:
    if spelling.startswith("--"):
        return f"-l {spelling[2:]}"
    return f"-s {spelling[1:]}" if len(spelling) == 2 else f"-o {spelling[1:]}"


def _fish_value(flag: Flag) -> str:
    if flag.choices:
        return f" -x -a '{' '.join(flag.choices)}'"
    if flag.kind == "bool":
        return ""
    return " -r" if flag.kind == "path" or flag.target == "tokenizer.name" else " -x"


def _long_spellings() -> list[str]:
    return [spelling for flag in FLAGS for spelling in flag.spellings if spelling.startswith("--")] + ["--help"]


def _spellings_with_values() -> list[str]:
    """Of the flags whose value the table cannot list: the shell then offers files."""
    return [spelling for flag in FLAGS if flag.kind != "bool" and not flag.choices for spelling in flag.spellings]


def _quoted(text: str, *, fish: bool = False) -> str:
    return "'" + text.replace("'", "\\'" if fish else "'\\''") + "'"
