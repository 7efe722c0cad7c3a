"""The program: find the command, run it, turn what went wrong into one sentence and an exit status.

A command's modules are imported when it is called: `--help` answers in the time that Python needs to start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from penstock.cli import interrupts
from penstock.cli.commands import AIPERF_COMMANDS, COMMANDS
from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_USER
from penstock.errors import PenstockError, UserError, disk_full
from penstock.suggest import did_you_mean

__all__ = ["main"]

_MODULES = {command.name: command.module for command in COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    return interrupts.finish(_main(argv))


def _main(argv: Sequence[str] | None) -> int:
    _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    program = _program()
    where = f"{program} {words[0]}" if words and words[0] in _MODULES else program
    try:
        status = _dispatch(words, program)
        sys.stdout.flush()
    except UserError as error:
        return _say(f"{where}: {error}", EXIT_USER)
    except PenstockError as error:
        return _say(f"{where}: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_gone():
            return EXIT_PIPE
        if (full := disk_full(error)) is not None:
            _drop_output()
            return _say(f"{where}: {full}", EXIT_USER)
        return _unexpected(error, where)
    return status


def _open_streams() -> None:
    """One that the caller has closed (`>&-`) leads nowhere. Left closed, the next socket would get its number, and be written
    to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115 - for the life of the process


def _dispatch(words: list[str], program: str) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("--help", "-h", "help"):
        return _help(rest, program)
    if command == "--version":
        command = "version"
    if command in _MODULES:
        return _run(command, rest, program)
    if command in AIPERF_COMMANDS:
        raise _not_built(command)
    if command.startswith("-"):
        name = command.partition("=")[0]
        elsewhere = f"options come after a command, as in `{program} profile {name} ...`."
        raise UserError(f"There is no option {name} here; {did_you_mean(name, ('--help', '--version'), elsewhere)}")
    raise _no_command(command, program)


def _run(command: str, words: list[str], program: str) -> int:
    run: Callable[[list[str], str], int] = import_module(f"penstock.cli.{_MODULES[command]}").run
    if command not in ("profile", "compare"):
        interrupts.raise_keyboard_interrupt()
    return run(words, program)


def _not_built(command: str) -> UserError:
    return UserError(f"{command} is an AIPerf command that this version of Penstock does not have yet.")


def _no_command(name: str, program: str) -> UserError:
    hint = did_you_mean(name, _MODULES, f"`{program} --help` lists them.")
    return UserError(f"There is no command {name!r}; {hint}")


def _help(words: list[str], program: str) -> int:
    asked = words[0] if words and words[0] not in ("help", "version", "--help", "-h") else None
    if asked in _MODULES:
        return _run(asked, ["--help"], program)
    if asked in AIPERF_COMMANDS:
        raise _not_built(asked)
    if asked is not None:
        raise _no_command(asked, program)
    from penstock.cli.help import overview

    sys.stdout.write(overview(program))
    return 0


def _program() -> str:
    """How the program was called: aiperf or penstock."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if name in ("aiperf", "penstock") else "penstock"


def _say(sentence: str, status: int) -> int:
    sys.stderr.write(sentence + "\n")
    return status


def _unexpected(error: Exception, where: str) -> int:
    if os.environ.get("PENSTOCK_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(
        f"{where}: Penstock failed unexpectedly: {what} (this is a fault in Penstock; set PENSTOCK_DEBUG=1 for the "
        "traceback)",
        EXIT_FAILED,
    )


def _stdout_is_gone() -> bool:
    """Whether the reader of standard output went away."""
    import select

    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(out, 0)
    if not poll.poll(0):  # errors and hang-ups are always reported
        return False
    _drop_output()
    return True


def _drop_output() -> None:
    """What could not be written is not tried again at exit, so that it is quiet."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
