"""`penstock mock`: an OpenAI-compatible server whose timing is known exactly."""

from __future__ import annotations

import io
import sys

from penstock.cli.command_line import HELP, CommandLine
from penstock.errors import UserError
from penstock.mock.options import OPTIONS
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Flag, Group

__all__ = ["COMMAND_LINE", "run"]

_GROUPS = {
    "timing": "Timing of the tokens",
    "reply": "What a reply holds",
    "stream": "Events of a stream",
    "wire": "Writes and connections",
    "faults": "Faults",
}


def _behaviour_flags(group: str) -> tuple[Flag, ...]:
    """Rows whose values stay texts: `read_options` reads them for the command line, mock:// URLs and X-Mock alike."""
    return tuple(
        Flag(
            "--" + option.name.replace("_", "-"),
            "str",
            option.help,
            f"behaviour.{option.name}",
            option.metavar,
            implied="on" if option.flag else None,
        )
        for option in OPTIONS
        if option.group == group
    )


COMMAND_LINE = CommandLine(
    "mock",
    """\
An OpenAI-compatible model server that invents its replies and keeps to the timing it is given. It serves
/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models and /health under any prefix,
and its own counts under /mock/stats. A request may change any option for itself: X-Mock: ttft=50;itl=5
""",
    groups=(
        Group(
            "Where",
            (
                Flag("--host", "str", "Address to listen on.", "host", "HOST", default="127.0.0.1"),
                Flag(
                    "--port",
                    "int",
                    "Port to listen on; 0 takes any free one.",
                    "port",
                    "N",
                    default="8000",
                    ge=0,
                    le=65535,
                ),
            ),
        ),
        *(Group(title, _behaviour_flags(name)) for name, title in _GROUPS.items()),
        Group(
            "The log of what was sent",
            (
                Flag("--log", "path", "Write one JSON line for each request when it ends.", "log", "FILE"),
                Flag("--log-writes", "bool", "Add the time of every token to the log.", "log_writes"),
                Flag("--log-hash", "bool", "Add the SHA-256 of each request's body to the log.", "log_hash"),
            ),
        ),
        Group("Help", (HELP,)),
    ),
    usage=("[--port N] [--ttft MS] [--itl MS] [--tokens N] [options]",),
    examples=(
        ("Answer at once, on http://127.0.0.1:8000", "mock"),
        (
            "50 ms to the first token, 10 ms between tokens, replies of 200 tokens",
            "mock --ttft 50 --itl 10 --tokens 200",
        ),
        (
            "Prefill that grows with the prompt, uneven gaps, a log of what was sent",
            "mock --port 0 --ttft 30 --input-cost 100 --jitter 5 --log mock-log.jsonl",
        ),
        (
            "Refuse one request in ten, the same ones each time",
            "mock --error 429 --error-rate 0.1 --retry-after 2 --seed 7",
        ),
        ("Lose one stream in twenty after its 20th token", "mock --cut 20 --cut-rate 0.05 --reset"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.mock.behaviour import describe, read_options
    from penstock.mock.server_settings import ServerSettings

    values = parsed.values
    behaviour = read_options(parsed.section("behaviour").items())
    log, log_writes, log_hash = values.get("log"), values.get("log_writes", False), values.get("log_hash", False)
    if log is None and (log_writes or log_hash):
        raise UserError("--log-writes and --log-hash add to the log; give its file with --log FILE.")
    settings = ServerSettings(
        host=values.get("host", "127.0.0.1"),
        port=values.get("port", 8000),
        log=log,
        log_writes=log_writes,
        log_hash=log_hash,
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal's encoding has the dash

    def announce(port: int) -> None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"Penstock mock on http://{host}:{port} — {describe(behaviour)}", flush=True)

    from penstock.mock.run_server import serve  # after the arguments are read: help needs no event loop

    served = serve(behaviour, settings, announce)
    print(f"\nServed {served:,} request{'' if served == 1 else 's'}.")
    return 0
