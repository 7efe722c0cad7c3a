"""The program: find the command, run it, turn what went wrong into one sentence and an exit status.

A command's modules are imported when it is called: `--help` answers in the time that Python needs to start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from penstock import __version__
from penstock.cli.commands import AIPERF_COMMANDS, COMMANDS
from penstock.errors import PenstockError, UserError

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""What the shell reports for a program that writes into a closed pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    program = _program()
    known = {command.name for command in COMMANDS}
    where = f"{program} {words[0]}" if words and words[0] in known else program
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
        return _unexpected(error, where)
    return status


def _dispatch(words: list[str], program: str) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("--help", "-h", "help"):
        return _help(rest, program)
    if command == "--version":
        command = "version"
    if (run := _RUN.get(command)) is not None:
        return run(rest, program)
    if command in AIPERF_COMMANDS:
        raise UserError(f"{command} is an AIPerf command that this version of Penstock does not have yet.")
    if command.startswith("-"):
        name = command.partition("=")[0]
        raise UserError(f"Options come after a command, as in `{program} profile {name} ...`.")
    from penstock.settings.values import nearest

    guess = nearest(command.lower(), [known.name for known in COMMANDS])
    hint = f"did you mean {guess}?" if guess else f"`{program} --help` lists them."
    raise UserError(f"There is no command {command!r}; {hint}")


def _help(words: list[str], program: str) -> int:
    if words and words[0] in _RUN and words[0] != "version":
        return _RUN[words[0]](["--help"], program)
    from penstock.cli.help import overview

    sys.stdout.write(overview(program))
    return 0


def _profile(words: list[str], program: str) -> int:
    options = words[: words.index("--")] if "--" in words else words
    if "--help" in options or "-h" in options:
        from penstock.cli.help import profile_help

        sys.stdout.write(profile_help(program))
        return 0
    from penstock.cli.parse import parse
    from penstock.settings.resolve import resolve

    settings = resolve(parse(words, program))
    from penstock.cli.profile import run

    return run(settings)


def _mock(words: list[str], _program: str) -> int:
    from penstock.cli.mock import run

    return run(words)


def _gateway(words: list[str], program: str) -> int:
    from penstock.cli.gateway import run

    return run(words, program)


def _usage(words: list[str], _program: str) -> int:
    from penstock.cli.usage import run

    return run(words)


def _report(words: list[str], _program: str) -> int:
    from penstock.cli.report import run

    return run(words)


def _verify(words: list[str], _program: str) -> int:
    from penstock.cli.verify import run

    return run(words)


def _compare(words: list[str], program: str) -> int:
    from penstock.cli.compare import run

    return run(words, program)


def _completion(words: list[str], program: str) -> int:
    from penstock.cli.complete import run

    return run(words, program)


def _version(_words: list[str], _program: str) -> int:
    sys.stdout.write(f"{__version__}\n")
    return 0


_RUN: dict[str, Callable[[list[str], str], int]] = {
    "compare": _compare,
    "completion": _completion,
    "gateway": _gateway,
    "mock": _mock,
    "profile": _profile,
    "report": _report,
    "usage": _usage,
    "verify": _verify,
    "version": _version,
}


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
    """Whether the reader of standard output went away. Then it is pointed elsewhere, so that exit is quiet too."""
    import select

    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(out, 0)
    if not poll.poll(0):  # errors and hang-ups are always reported
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return True


if __name__ == "__main__":
    sys.exit(main())
