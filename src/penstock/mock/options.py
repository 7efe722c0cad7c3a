"""The table of options: for the command line, for mock:// URLs and for the X-Mock header.

Each is read from text, so that the three ways of giving it cannot differ.
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
    read: Callable[[str], Any]
    """Text to value; a ValueError's message completes the sentence '<name> must be …'."""
    metavar: str
    help: str
    shows: str = ""
    """How a value is told in one line, with {} for it; `name value` where it is empty."""
    server: bool = False
    """It belongs to the whole server, so a single request cannot change it."""

    @property
    def flag(self) -> bool:
        return self.metavar == "on|off"


DAY_MS = 86_400_000
ON = {"on", "true", "yes", "1", ""}
OFF = {"off", "false", "no", "0"}


def _number(what: str, low: float, high: float, *, infinite: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(what) from None
        if not (low <= value <= high or (infinite and value == math.inf)):
            raise ValueError(what)
        return value

    return read


def _whole(what: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or not low <= int(text) <= high:
            raise ValueError(what)
        return int(text)

    return read


def _or_off(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_or_off(text: str) -> Any:
        return None if text in ("off", "none") else read(text)

    return read_or_off


def _flag(text: str) -> bool:
    if text.lower() in ON:
        return True
    if text.lower() in OFF:
        return False
    raise ValueError("on or off")


def _choice(values: object) -> Callable[[str], str]:
    names: tuple[str, ...] = get_args(values)

    def read(text: str) -> str:
        if text not in names:
            raise ValueError("one of " + ", ".join(names))
        return text

    return read


def _text(text: str) -> str:
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("some printable ASCII text")
    return text


_ms = _number("a number of milliseconds, 0 or more", 0, DAY_MS)
_seconds = _number("a number of seconds, 0 or more, or inf", 0, DAY_MS / 1000, infinite=True)
_finite = _number("a number of seconds, 0 or more", 0, DAY_MS / 1000)
_rate = _number("a share from 0 to 1", 0, 1)
_count = _whole("a whole number of tokens, 0 or more", 0, 1_000_000)
_some = _whole("a whole number of tokens, 1 or more", 1, 1_000_000)


def _fault(name: str, read: Callable[[str], Any], metavar: str, text: str, shows: str) -> tuple[Option, Option]:
    return (
        Option(name, "faults", read, metavar, text, shows),
        Option(f"{name}_rate", "faults", _rate, "SHARE", f"share of the requests that {name} strikes (1)"),
    )


OPTIONS: tuple[Option, ...] = (
    Option("ttft", "timing", _ms, "MS", "from the arrival of the request to its first token (0)", "ttft {} ms"),
    Option("itl", "timing", _ms, "MS", "between two tokens (0)", "itl {} ms"),
    Option("jitter", "timing", _ms, "MS", "the first token and every gap take 0 to MS longer (0)", "jitter {} ms"),
    Option(
        "input_cost",
        "timing",
        _number("a number of microseconds, 0 or more", 0, 1e9),
        "US",
        "microseconds that each input token adds before the first token, the same as ms per 1,000 (0)",
        "{} µs per input token",
    ),
    Option("tokens", "reply", _some, "N", "length of a reply when the request sets no limit (100)", "{} tokens"),
    Option(
        "chunk", "reply", _some, "N", "tokens in one event; the gap before it is N times itl (1)", "{} tokens an event"
    ),
    Option(
        "reasoning",
        "reply",
        _count,
        "N",
        "how many of the reply's tokens, the first, are reasoning (0)",
        "{} of reasoning",
    ),
    Option("tools", "reply", _flag, "on|off", "answer with a tool call", "tool calls"),
    Option("refusal", "reply", _flag, "on|off", "answer with a refusal", "refusals"),
    Option(
        "thoughts",
        "reply",
        _choice(Thoughts),
        "HOW",
        "responses: reasoning comes as a summary or as text (summary)",
        "reasoning as {}",
    ),
    Option(
        "incomplete",
        "reply",
        _or_off(_choice(Incomplete)),
        "WHY",
        "responses: end as incomplete for max_output_tokens, where a limit is set, or for content_filter",
        "incomplete for {}",
    ),
    Option(
        "dimensions",
        "reply",
        _whole("a whole number from 1 to 65536", 1, 65536),
        "N",
        "length of an embedding when the request sets none (64)",
        "{} dimensions",
    ),
    Option(
        "seed", "reply", _whole("a whole number", 0, 2**63 - 1), "N", "decides words, jitter and faults (0)", "seed {}"
    ),
    Option("model", "reply", _text, "NAME", "what /v1/models lists; any name is served", "model {}", server=True),
    Option("usage", "stream", _choice(UsageSent), "WHEN", "asked, always or never (asked)", "usage {}"),
    Option(
        "role",
        "stream",
        _choice(Role),
        "HOW",
        "first event with the role: on, off, or early, before ttft (on)",
        "role {}",
    ),
    Option("finish", "stream", _flag, "on|off", "send a finish_reason (on)", "finish {}"),
    Option("done", "stream", _flag, "on|off", "send data: [DONE] (on)", "done {}"),
    Option("event_lines", "stream", _flag, "on|off", "give every event an event: line", "event lines"),
    Option(
        "comments",
        "stream",
        _whole("a whole number of events, 0 or more", 0, 1_000_000),
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
        "write every event on its own, also where several are due at once",
        "separate writes",
    ),
    Option(
        "split",
        "wire",
        _or_off(_ms),
        "MS",
        "cut every write into 2 or 3 at arbitrary bytes, MS apart",
        "writes cut, {} ms apart",
    ),
    Option(
        "framing", "wire", _choice(Framing), "HOW", "end of a body: auto, chunked, length or eof (auto)", "framing {}"
    ),
    Option("close", "wire", _flag, "on|off", "close the connection after every reply", "a connection a request"),
    Option(
        "idle_close",
        "wire",
        _or_off(_ms),
        "MS",
        "close connections that wait MS for a request",
        "idle connections closed after {} ms",
        server=True,
    ),
    *_fault(
        "error",
        _or_off(_whole("an HTTP status from 400 to 599", 400, 599)),
        "STATUS",
        "answer with this status",
        "error {}",
    ),
    Option(
        "retry_after",
        "faults",
        _or_off(_whole("a whole number of seconds", 0, 86_400)),
        "S",
        "Retry-After of such an answer",
        "retry after {} s",
    ),
    *_fault(
        "stream_error",
        _or_off(_count),
        "K",
        "after K tokens, an error object instead of the rest",
        "an error object after {} tokens",
    ),
    *_fault(
        "cut", _or_off(_count), "K", "close the connection after K tokens; 0 is before the head", "cut after {} tokens"
    ),
    Option("reset", "faults", _flag, "on|off", "such a cut is a TCP reset", "by a reset"),
    *_fault("stall", _or_off(_seconds), "S", "send nothing for S seconds, or for ever with inf", "a stall of {} s"),
    Option("stall_after", "faults", _count, "K", "how many tokens come before the stall (1)", "after {} tokens"),
    *_fault("malformed", _or_off(_count), "K", "after K tokens, an event that is not JSON", "bad JSON after {} tokens"),
    *_fault("slow_head", _or_off(_finite), "S", "take S seconds over the bytes of the head", "the head over {} s"),
    *_fault("empty", _flag, "on|off", "status 200 and no body", "empty bodies"),
    *_fault("html", _flag, "on|off", "status 200 and a page of HTML", "HTML bodies"),
    *_fault("content_type", _or_off(_text), "TYPE", "a wrong Content-Type", "Content-Type {}"),
    *_fault(
        "failed",
        _or_off(_count),
        "K",
        "responses: after K tokens the response ends as failed; elsewhere an error object",
        "failed after {} tokens",
    ),
)
