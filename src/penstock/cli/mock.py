"""`penstock mock`: an OpenAI-compatible server whose timing is known exactly."""

from __future__ import annotations

import argparse
import io
import os
import sys

from penstock.cli.arguments import Arguments
from penstock.errors import UserError
from penstock.mock.behaviour import describe, read_options
from penstock.mock.options import OPTIONS
from penstock.mock.server_settings import ServerSettings

__all__ = ["run"]

ABOUT = """\
An OpenAI-compatible model server that invents its replies and keeps to the timing it is given. It serves
/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models and /health under any prefix,
and its own counts under /mock/stats. A request may change any option for itself: X-Mock: ttft=50;itl=5
"""

EXAMPLES = """\
Examples
  {program} mock
      answer at once, on http://127.0.0.1:8000
  {program} mock --ttft 50 --itl 10 --tokens 200
      50 ms to the first token, 10 ms between tokens, replies of 200 tokens
  {program} mock --port 0 --ttft 30 --input-cost 100 --jitter 5 --log truth.jsonl
      prefill that grows with the prompt, uneven gaps, a log of what was sent
  {program} mock --error 429 --error-rate 0.1 --retry-after 2 --seed 7
      refuse one request in ten, the same ones each time
  {program} mock --cut 20 --cut-rate 0.05 --reset
      lose one stream in twenty after its 20th token
"""

GROUPS = {
    "timing": "Timing of the tokens",
    "reply": "What a reply holds",
    "stream": "Events of a stream",
    "wire": "Writes and connections",
    "faults": "Faults",
}


def run(words: list[str], program: str) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without a dash is no reason to fail
    return _serve(arguments(program).read(words))


def arguments(program: str) -> Arguments:
    usage = "{program} mock [--port N] [--ttft MS] [--itl MS] [--tokens N] [option ...]"
    made = Arguments(program, "mock", ABOUT, EXAMPLES, usage)
    place = made.add_argument_group("Where")
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    place.add_argument("--port", default="8000", metavar="N", help="port to listen on; 0 takes any free one (8000)")
    groups = {name: made.add_argument_group(title) for name, title in GROUPS.items()}
    for option in OPTIONS:
        flag = "--" + option.name.replace("_", "-")
        # `--separate` alone is on; every value stays text here, and one place reads it.
        optional = {"nargs": "?", "const": "on"} if option.flag else {}
        groups[option.group].add_argument(
            flag,
            dest=f"option_{option.name}",
            metavar=option.metavar,
            help=option.help,
            **optional,  # type: ignore[arg-type]
        )
    log = made.add_argument_group("The log of what was sent")
    log.add_argument(
        "--log", metavar="FILE", type=os.path.expanduser, help="write one JSON line for each request when it ends"
    )
    log.add_argument("--log-writes", action="store_true", help="with the time of every token")
    log.add_argument("--log-hash", action="store_true", help="with the SHA-256 of the request's body")
    return made


def _serve(given: argparse.Namespace) -> int:
    texts = {name.removeprefix("option_"): text for name, text in vars(given).items() if name.startswith("option_")}
    behaviour = read_options((name, text) for name, text in texts.items() if text is not None)
    if not given.port.isdecimal() or int(given.port) > 65535:
        raise UserError(f"--port must be a whole number from 0 to 65535, not {given.port!r}")
    if given.log is None and (given.log_writes or given.log_hash):
        raise UserError("--log-writes and --log-hash add to the log: say where it goes with --log FILE")
    serving = ServerSettings(
        host=given.host, port=int(given.port), log=given.log, log_writes=given.log_writes, log_hash=given.log_hash
    )

    def announce(port: int) -> None:
        host = f"[{given.host}]" if ":" in given.host else given.host
        print(f"Penstock mock on http://{host}:{port} — {describe(behaviour)}", flush=True)

    from penstock.mock.run_server import serve  # after the arguments are read: help needs no event loop

    served = serve(behaviour, serving, announce)
    print(f"\nServed {served:,} request{'' if served == 1 else 's'}.")
    return 0
