"""`chat`: a conversation with a model in the terminal, with the times of each reply."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED
from penstock.cli.terminal import Paint
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import SPELLINGS
from penstock.settings.flags.flag import Flag, Group, read_flags

if TYPE_CHECKING:
    from penstock.runs.chat_client import Answer, ChatClient
    from penstock.settings.schema import Settings

_SHARED = """
--endpoint-type --custom-endpoint --api-key --api-key-file --api-key-env --header --extra-inputs
--request-timeout-seconds --insecure --proxy --trust-env --follow-cross-origin-redirects --system-prompt
--system-prompt-file
"""
"""Flags with the same meaning as in `profile`."""
_SHARED_FLAGS = [row for name in _SHARED.split() if isinstance(row := SPELLINGS[name], Flag)]
_OWN = read_flags("""
--model-names, --model, -m NAME | list models comma_separated
    Name of the model (required).
--url, -u URL | list endpoint.urls url
    Base URL of the server; http:// is the default scheme. mock:// is a model server inside Penstock.
    [default: http://localhost:8000]
--quick TEXT | str chat.quick
    Send this text, print the reply, and end.
--no-history | bool chat.no_history
    Send each text without the earlier turns.
""")


COMMAND_LINE = CommandLine(
    "chat",
    "Talk to a model in the terminal. Each reply is shown while it arrives, followed by its time to first token, its "
    "inter-token latency and its tokens.",
    groups=(Group("Options", (*_OWN, *_SHARED_FLAGS, HELP)),),
    usage=("--model NAME [options]",),
    details="""\
Requests contain the earlier turns of the conversation. Ctrl-C stops a reply, whose text up to then stays in the conversation;
Ctrl-D ends the conversation. If standard input is not a terminal, each of its lines is a turn. Replies go to standard output,
times and errors to standard error.
""",
    exit_statuses=(
        ("0", "the conversation has ended"),
        ("1", "a request failed; in a terminal, the conversation goes on instead"),
        ("2", "something on the command line must change"),
        ("130", "interrupted"),
    ),
    examples=(
        ("Talk to a mock model", "chat --model test --url mock://"),
        ("One question", "chat --model test --url mock:// --quick 'What is a penstock?'"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    from penstock.runs.read_settings import read_settings

    settings = read_settings(parsed)
    for values, flag in ((settings.models, "--model"), (settings.endpoint.urls, "--url")):
        if len(values) > 1:
            raise UserError(f"A conversation has one model on one server; give one value for {flag}.")
    from penstock.runs.start_run import mock_servers

    with mock_servers(settings) as started:
        return _converse(started, parsed)


def _converse(settings: Settings, parsed: ParsedArguments) -> int:
    from penstock.runs.chat_client import ChatClient

    screen = _Screen()
    client = ChatClient(settings, screen.show, history=not parsed.values.get("chat.no_history"))
    quick = parsed.values.get("chat.quick")
    in_terminal = quick is None and sys.stdin.isatty()
    if in_terminal:
        name = f"{settings.models[0]} at {settings.endpoint.urls[0]}"
        screen.note(f"{name}. Ctrl-C stops a reply, Ctrl-D ends the conversation.")
    try:
        for text in (quick,) if quick is not None else _typed_lines() if in_terminal else _piped_lines():
            answer = _ask(client, text)
            screen.finish(answer)
            if not in_terminal and answer.record.failure is not None:
                return EXIT_INTERRUPTED if answer.stopped else EXIT_FAILED
    finally:
        client.close()
    return 0


def _ask(client: ChatClient, text: str) -> Answer:
    previous = signal.signal(signal.SIGINT, lambda *_: client.stop())
    try:
        return client.ask(text)
    finally:
        signal.signal(signal.SIGINT, previous)


def _piped_lines() -> Iterator[str]:
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    for line in sys.stdin:
        if text := line.strip():
            yield text


def _typed_lines() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and a history of lines
    while True:
        try:
            line = _read_line()
        except KeyboardInterrupt:  # drop the line
            print(file=sys.stderr)
            continue
        except EOFError:
            print(file=sys.stderr)
            return
        if text := line.strip():
            yield text


def _read_line() -> str:
    if sys.stdout.isatty():
        return input("> ")
    # The prompt of input() would go into the file or the pipe of the replies.
    print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class _Screen:
    def __init__(self) -> None:
        self._paint = Paint()
        self._notes = Paint(on=None if sys.stderr.isatty() else False)
        self._reasoning = False
        self._began = False

    def show(self, text: str, reasoning: bool) -> None:
        """Write a part of a reply; reasoning is dim, and on a line of its own."""
        if self._began and reasoning is not self._reasoning:
            sys.stdout.write("\n")
        self._began, self._reasoning = True, reasoning
        sys.stdout.write(self._paint.dim(text) if reasoning else text)
        sys.stdout.flush()

    def finish(self, answer: Answer) -> None:
        if self._began:
            print(flush=True)
        self._began = False
        failure = answer.record.failure
        if answer.stopped:
            self.note("Stopped.")
        elif failure is not None:
            self.note(f"The request failed: {failure.message}")
        else:
            self.note(figures(answer))

    def note(self, text: str) -> None:
        print(self._notes.dim(text), file=sys.stderr, flush=True)


def figures(answer: Answer) -> str:
    """Return a line with the times and the tokens of a reply."""
    record, metrics = answer.record, answer.metrics
    parts = [
        f"{name} {metrics[tag]:,.2f} ms"
        for name, tag in (("TTFT", "time_to_first_token"), ("ITL", "inter_token_latency"), ("total", "request_latency"))
        if tag in metrics
    ]
    usage = record.usage
    if usage is None or usage.completion is None:
        parts.append(f"{counted(sum(record.pieces), 'chunk')}; the server counts no tokens")
    else:
        reasoning = f" ({usage.reasoning:,} reasoning)" if usage.reasoning else ""
        parts.append(f"{counted(usage.completion, 'output token')}{reasoning}")
    if usage is not None and usage.prompt is not None:
        cached = f" ({usage.cache_read:,} cached)" if usage.cache_read is not None else ""
        parts.append(f"{counted(usage.prompt, 'input token')}{cached}")
    return ", ".join(parts)
