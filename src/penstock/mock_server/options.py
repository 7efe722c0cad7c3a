"""The options of the mock, for the command line, mock:// URLs and the X-Mock header.

All three give an option as text, which is parsed here, so they cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

__all__ = ["OPTIONS", "Framing", "Option", "Role", "Thoughts", "UsageSent"]

Framing = Literal["auto", "chunked", "length", "eof"]
Role = Literal["on", "off", "early"]
UsageSent = Literal["asked", "always", "never"]
Thoughts = Literal["summary", "text"]
Incomplete = Literal["max_output_tokens", "content_filter"]


class Option(NamedTuple):
    name: str
    group: str
    parse: Callable[[str], Any]
    """Convert text to a value. The message of a ValueError completes the sentence '<name> must be …'."""
    metavar: str
    help: str
    summary: str = ""
    """The option in the line printed at startup, with {} for the value."""
    server_wide: bool = False
    """A single request cannot change the option."""

    @property
    def flag(self) -> bool:
        return self.metavar == "on|off"


DAY_MS = 86_400_000
ON = {"on", "true", "yes", "1", ""}
OFF = {"off", "false", "no", "0"}


def _number(expected: str, low: float, high: float, *, infinite: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(expected) from None
        if not (low <= value <= high or (infinite and value == math.inf)):
            raise ValueError(expected)
        return value

    return parse


def _integer(expected: str, low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or not low <= int(text) <= high:
            raise ValueError(expected)
        return int(text)

    return parse


def _or_off(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_or_off(text: str) -> Any:
        return None if text in ("off", "none") else parse(text)

    return parse_or_off


def _flag(text: str) -> bool:
    if text.lower() in ON:
        return True
    if text.lower() in OFF:
        return False
    raise ValueError("on or off")


def _choice(values: object) -> Callable[[str], str]:
    names: tuple[str, ...] = get_args(values)

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError("one of " + ", ".join(names))
        return text

    return parse


def _text(text: str) -> str:
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("some printable ASCII text")
    return text


_ms = _number("a number of milliseconds, 0 or more", 0, DAY_MS)
_seconds = _number("a number of seconds, 0 or more, or inf", 0, DAY_MS / 1000, infinite=True)
_finite_seconds = _number("a number of seconds, 0 or more", 0, DAY_MS / 1000)
_rate = _number("a share from 0 to 1", 0, 1)
_tokens = _integer("a whole number of tokens, 0 or more", 0, 1_000_000)
_positive_tokens = _integer("a whole number of tokens, 1 or more", 1, 1_000_000)


def _fault(name: str, parse: Callable[[str], Any], metavar: str, text: str, summary: str) -> tuple[Option, Option]:
    return (
        Option(name, "faults", parse, metavar, text, summary),
        Option(f"{name}_rate", "faults", _rate, "SHARE", f"share of requests with the fault {name} (1)"),
    )


OPTIONS: tuple[Option, ...] = (
    Option("ttft", "timing", _ms, "MS", "time from the arrival of the request to its first token (0)", "ttft {} ms"),
    Option("itl", "timing", _ms, "MS", "time between two tokens (0)", "itl {} ms"),
    Option(
        "jitter", "timing", _ms, "MS", "add a random 0 to MS to the first token and to every gap (0)", "jitter {} ms"
    ),
    Option(
        "input_cost",
        "timing",
        _number("a number of microseconds, 0 or more", 0, 1e9),
        "US",
        "microseconds that each input token that is not cached adds to ttft, the same as ms per 1,000 tokens (0)",
        "{} µs per input token",
    ),
    Option(
        "slots",
        "capacity",
        _or_off(_integer("a whole number of requests from 1 to 1000000", 1, 1_000_000)),
        "N",
        "process at most N requests at a time; others wait in a queue, before ttft begins (no limit)",
        "{} slots",
        server_wide=True,
    ),
    Option(
        "prefix_cache",
        "capacity",
        _or_off(_integer("a whole number of blocks from 1 to 100000000", 1, 100_000_000)),
        "BLOCKS",
        "simulate a cache of BLOCKS blocks of prompt tokens and report cached_tokens (off)",
        "a prefix cache of {} blocks",
        server_wide=True,
    ),
    Option(
        "block_size",
        "capacity",
        _positive_tokens,
        "N",
        "tokens in a block of the prefix cache (16)",
        "{} tokens a block",
        server_wide=True,
    ),
    Option(
        "tokens", "reply", _positive_tokens, "N", "length of a reply if the request sets no limit (100)", "{} tokens"
    ),
    Option(
        "chunk",
        "reply",
        _positive_tokens,
        "N",
        "tokens in one event; the gap before it is N times itl (1)",
        "{} tokens an event",
    ),
    Option(
        "token_words",
        "reply",
        _integer("a whole number of words from 1 to 100", 1, 100),
        "N",
        "words in the text of one token, each of which a client's tokenizer counts (1)",
        "{} words a token",
    ),
    Option(
        "legacy_limit",
        "reply",
        _flag,
        "on|off",
        "chat: ignore max_completion_tokens, as a server that knows only max_tokens does",
        "max_completion_tokens ignored",
    ),
    Option(
        "reasoning",
        "reply",
        _tokens,
        "N",
        "number of tokens at the start of a reply that are reasoning (0)",
        "{} of reasoning",
    ),
    Option("tools", "reply", _flag, "on|off", "reply with a tool call", "tool calls"),
    Option("refusal", "reply", _flag, "on|off", "reply with a refusal", "refusals"),
    Option(
        "thoughts",
        "reply",
        _choice(Thoughts),
        "HOW",
        "responses: send reasoning as summary or text (summary)",
        "reasoning as {}",
    ),
    Option(
        "incomplete",
        "reply",
        _or_off(_choice(Incomplete)),
        "WHY",
        "responses: end as incomplete because of max_output_tokens, if the request sets it, or content_filter",
        "incomplete for {}",
    ),
    Option(
        "dimensions",
        "reply",
        _integer("a whole number from 1 to 65536", 1, 65536),
        "N",
        "length of an embedding if the request sets none (64)",
        "{} dimensions",
    ),
    Option(
        "seed",
        "reply",
        _integer("a whole number", 0, 2**63 - 1),
        "N",
        "seed of the words, the jitter and the faults (0)",
        "seed {}",
    ),
    Option(
        "model",
        "reply",
        _text,
        "NAME",
        "model that /v1/models lists; requests may name any model",
        "model {}",
        server_wide=True,
    ),
    Option(
        "usage", "stream", _choice(UsageSent), "WHEN", "when to send usage: asked, always or never (asked)", "usage {}"
    ),
    Option(
        "role",
        "stream",
        _choice(Role),
        "HOW",
        "first event, with the role: on, off, or early (before ttft) (on)",
        "role {}",
    ),
    Option("finish", "stream", _flag, "on|off", "send a finish_reason (on)", "finish {}"),
    Option("done", "stream", _flag, "on|off", "send data: [DONE] (on)", "done {}"),
    Option("event_lines", "stream", _flag, "on|off", "give every event an event: line", "event lines"),
    Option(
        "comments",
        "stream",
        _integer("a whole number of events, 0 or more", 0, 1_000_000),
        "N",
        "send the comment ': ping' before every N-th event (0, none)",
        "a comment every {} events",
    ),
    Option("crlf", "stream", _flag, "on|off", "end event lines with CR LF", "CR LF"),
    Option(
        "separate",
        "wire",
        _flag,
        "on|off",
        "write every event separately, even if several are due at once",
        "separate writes",
    ),
    Option(
        "split",
        "wire",
        _or_off(_ms),
        "MS",
        "split every write at random bytes into 2 or 3, MS apart",
        "writes cut, {} ms apart",
    ),
    Option(
        "framing", "wire", _choice(Framing), "HOW", "how a body ends: auto, chunked, length or eof (auto)", "framing {}"
    ),
    Option("close", "wire", _flag, "on|off", "close the connection after every reply", "a connection a request"),
    Option(
        "idle_close",
        "wire",
        _or_off(_ms),
        "MS",
        "close connections that are idle for MS",
        "idle connections closed after {} ms",
        server_wide=True,
    ),
    *_fault(
        "error",
        _or_off(_integer("an HTTP status from 400 to 599", 400, 599)),
        "STATUS",
        "answer with this status",
        "error {}",
    ),
    Option(
        "retry_after",
        "faults",
        _or_off(_integer("a whole number of seconds", 0, 86_400)),
        "S",
        "Retry-After header of an error",
        "retry after {} s",
    ),
    *_fault(
        "stream_error",
        _or_off(_tokens),
        "K",
        "after K tokens, send an error object instead of the rest",
        "an error object after {} tokens",
    ),
    *_fault(
        "cut",
        _or_off(_tokens),
        "K",
        "close the connection after K tokens; 0 means before the head",
        "cut after {} tokens",
    ),
    Option("reset", "faults", _flag, "on|off", "make the cut a TCP reset", "by a reset"),
    *_fault("stall", _or_off(_seconds), "S", "send nothing for S seconds; inf means forever", "a stall of {} s"),
    Option("stall_after", "faults", _tokens, "K", "number of tokens before the stall (1)", "after {} tokens"),
    *_fault(
        "malformed", _or_off(_tokens), "K", "after K tokens, send an event that is not JSON", "bad JSON after {} tokens"
    ),
    *_fault("slow_head", _or_off(_finite_seconds), "S", "send the head slowly, over S seconds", "the head over {} s"),
    *_fault("empty", _flag, "on|off", "answer with status 200 and no body", "empty bodies"),
    *_fault("html", _flag, "on|off", "answer with status 200 and an HTML page", "HTML bodies"),
    *_fault("content_type", _or_off(_text), "TYPE", "send this wrong Content-Type", "Content-Type {}"),
    *_fault(
        "failed",
        _or_off(_tokens),
        "K",
        "responses: end as failed after K tokens; elsewhere: send an error object",
        "failed after {} tokens",
    ),
)
