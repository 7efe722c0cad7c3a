"""`mock`: serve a mock model with exactly known timing."""

from __future__ import annotations

import io
import sys

from penstock.errors import UserError
from penstock.mock_server.options import OPTIONS
from penstock.plural import counted
from penstock.settings.command_line import HELP, CommandLine, examples
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Flag, Group, read_groups

_GROUPS = {
    "timing": "Token timing",
    "capacity": "Capacity and prefix cache",
    "reply": "Reply content",
    "stream": "Stream events",
    "wire": "Writes and connections",
    "faults": "Faults",
}


def _behaviour_flags(group: str) -> tuple[Flag, ...]:
    """Return flags for the options of a group. Values stay text, because `read_options` converts them for all callers."""
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
Serve a mock model over OpenAI-compatible APIs, with generated replies at exactly the given times. The paths are
/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models and /health, under any prefix,
/mock/stats for the mock's counters, /metrics for Prometheus, with vLLM's names, and /reset_prefix_cache, /start_profile
and /stop_profile as in vLLM. A request can change options for itself with a header: X-Mock: ttft=50;itl=5
""",
    groups=(
        *read_groups("""\
Address
--host HOST | str host
    Address to listen on. [default: 127.0.0.1]
--port N | int port ge=0 le=65535
    Port to listen on; 0 chooses a free port. [default: 8000]
"""),
        *(Group(title, _behaviour_flags(name)) for name, title in _GROUPS.items()),
        *read_groups("""\
Request log
--log FILE | path log
    Write one JSON line per request to this file, when the request ends.
--log-writes | bool log_writes
    Add the time of every token to the log.
--log-hash | bool log_hash
    Add the SHA-256 of each request's body to the log.
"""),
        Group("Help", (HELP,)),
    ),
    usage=("[--port N] [--ttft MS] [--itl MS] [--tokens N] [options]",),
    examples=examples("""\
Reply immediately, on http://127.0.0.1:8000
    mock
50 ms to the first token, 10 ms between tokens, replies of 200 tokens
    mock --ttft 50 --itl 10 --tokens 200
Prefill time that grows with the prompt, jitter, and a request log
    mock --port 0 --ttft 30 --input-cost 100 --jitter 5 --log mock-log.jsonl
A capacity of 4 requests in 150 ms, and a prefix cache of 1,000 blocks
    mock --ttft 50 --itl 10 --tokens 11 --slots 4 --prefix-cache 1000
Refuse one request in ten, the same requests in every run
    mock --error 429 --error-rate 0.1 --retry-after 2 --seed 7
Reset one connection in twenty after 20 tokens
    mock --cut 20 --cut-rate 0.05 --reset
"""),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.mock_server.behaviour import describe, read_options
    from penstock.mock_server.server_settings import ServerSettings

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
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack the dash

    def announce(port: int) -> None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"Penstock mock on http://{host}:{port} — {describe(behaviour)}", flush=True)

    from penstock.mock_server.run_server import serve  # last, because mistakes need no event loop

    served = serve(behaviour, settings, announce)
    print(f"\nServed {counted(served, 'request')}.")
    return 0
