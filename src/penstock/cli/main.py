"""Entry point: run the command, and turn errors into one sentence and an exit status.

A command's module is imported only when the command is called, so that `--help` is as fast as the start of Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from penstock import __version__
from penstock.cli import interrupts
from penstock.cli.commands import AIPERF_COMMANDS, COMMANDS
from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PIPE, EXIT_USER
from penstock.errors import PenstockError, UserError, disk_full
from penstock.suggest import did_you_mean

_COMMANDS = {command.name: command for command in COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    return interrupts.finish(_main(argv))


def _main(argv: Sequence[str] | None) -> int:
    _open_streams()
    # numpy's OpenBLAS starts a thread for each core, which took 1.8 s of CPU time per start on 16 cores. No command needs them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = list(sys.argv[1:] if argv is None else argv)
    program = _program()
    prefix = f"{program} {words[0]}" if words and words[0] in _COMMANDS else program
    try:
        status = _dispatch(words, program)
        sys.stdout.flush()
    except UserError as error:
        return _fail(f"{prefix}: {error}", EXIT_USER)
    except PenstockError as error:
        return _fail(f"{prefix}: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_closed():
            return EXIT_PIPE
        if (full := disk_full(error)) is not None:
            if not _discard_output():
                return _fail(f"{prefix}: {full}", EXIT_USER)
            return _fail(f"{prefix}: Standard output cannot be written: there is no space for it.", EXIT_USER)
        return _unexpected(error, prefix)
    return status


def _open_streams() -> None:
    """Reopen closed standard streams (`>&-`) on /dev/null, so that no socket gets their descriptors and their output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode))  # noqa: SIM115 - open until the process ends


def _dispatch(words: list[str], program: str) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("--help", "-h", "help"):
        return _help(rest, program)
    if command == "--version":
        sys.stdout.write(f"{__version__}\n")
        return 0
    if command in _COMMANDS:
        return _run(command, rest, program)
    if command in AIPERF_COMMANDS:
        raise _unsupported(command)
    if command.startswith("-"):
        name = command.partition("=")[0]
        hint = f"options come after a command, as in `{program} profile {name} ...`."
        raise UserError(f"There is no option {name} here; {did_you_mean(name, ('--help', '--version'), hint)}")
    raise _unknown_command(command, program)


def _run(name: str, words: list[str], program: str) -> int:
    subcommands, module_name = _COMMANDS[name].subcommands, _COMMANDS[name].module
    if subcommands and words and not words[0].startswith("-"):
        if words[0] not in subcommands:
            hint = did_you_mean(words[0], subcommands, f"see `{program} {name} --help`.")
            raise UserError(f"The {name} has no command {words[0]!r}; {hint}")
        module_name, words = f"{module_name}_{words[0]}", words[1:]
    module = import_module(module_name)
    if name not in ("profile", "compare"):
        interrupts.raise_keyboard_interrupt()
    flags = words[: words.index("--")] if "--" in words else words
    if {"--help", "-h"} & set(flags):
        from penstock.cli.help import help_text

        sys.stdout.write(help_text(module.COMMAND_LINE, program))
        return 0
    from penstock.settings.config import with_config
    from penstock.settings.parse import parse

    status: int = module.run(with_config(parse(module.COMMAND_LINE, words, program)))
    return status


def _unsupported(command: str) -> UserError:
    return UserError(f"{command} is an AIPerf command that this version of Penstock does not have yet.")


def _unknown_command(name: str, program: str) -> UserError:
    hint = did_you_mean(name, _COMMANDS, f"see `{program} --help`.")
    return UserError(f"There is no command {name!r}; {hint}")


def _help(words: list[str], program: str) -> int:
    name = words[0] if words and words[0] not in ("help", "--help", "-h") else None
    if name in _COMMANDS:
        return _run(name, [*words[1:], "--help"], program)
    if name in AIPERF_COMMANDS:
        raise _unsupported(name)
    if name is not None:
        raise _unknown_command(name, program)
    from penstock.cli.help import overview

    sys.stdout.write(overview(program))
    return 0


def _program() -> str:
    """Return the name that the program was called by: aiperf or penstock."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if name in ("aiperf", "penstock") else "penstock"


def _fail(message: str, status: int) -> int:
    sys.stderr.write(message + "\n")
    return status


def _unexpected(error: Exception, prefix: str) -> int:
    if os.environ.get("PENSTOCK_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    return _fail(
        f"{prefix}: Penstock failed unexpectedly: {summary} (this is a fault in Penstock; set PENSTOCK_DEBUG=1 to see "
        "the traceback)",
        EXIT_FAILED,
    )


def _stdout_is_closed() -> bool:
    """Return whether the reader of standard output has closed it."""
    import select

    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(out, 0)
    if not poll.poll(0):  # poll always reports errors and hang-ups
        return False
    _discard_output()
    return True


def _discard_output() -> bool:
    """Redirect unwritable output to /dev/null, so that Python does not report it again at exit. Return whether it was
    unwritable."""
    try:
        sys.stdout.write("\n")  # a write that failed has left nothing in the buffer
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
