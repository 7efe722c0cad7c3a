"""The options of the mock, for the command line, mock:// URLs and the X-Mock header.

All three give an option as text, which is parsed here, so they cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

from penstock.table_rows import table_rows

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


_PARSERS: dict[str, Callable[[str], Any]] = {
    "flag": _flag,
    "text": _text,
    "ms": _number("a number of milliseconds, 0 or more", 0, DAY_MS),
    "us": _number("a number of microseconds, 0 or more", 0, 1e9),
    "seconds": _number("a number of seconds, 0 or more, or inf", 0, DAY_MS / 1000, infinite=True),
    "finite_seconds": _number("a number of seconds, 0 or more", 0, DAY_MS / 1000),
    "whole_seconds": _integer("a whole number of seconds", 0, 86_400),
    "share": _number("a share from 0 to 1", 0, 1),
    "tokens": _integer("a whole number of tokens, 0 or more", 0, 1_000_000),
    "positive_tokens": _integer("a whole number of tokens, 1 or more", 1, 1_000_000),
    "words": _integer("a whole number of words from 1 to 100", 1, 100),
    "requests": _integer("a whole number of requests from 1 to 1000000", 1, 1_000_000),
    "blocks": _integer("a whole number of blocks from 1 to 100000000", 1, 100_000_000),
    "events": _integer("a whole number of events, 0 or more", 0, 1_000_000),
    "dimensions": _integer("a whole number from 1 to 65536", 1, 65536),
    "seed": _integer("a whole number", 0, 2**63 - 1),
    "status": _integer("an HTTP status from 400 to 599", 400, 599),
    "thoughts": _choice(Thoughts),
    "incomplete": _choice(Incomplete),
    "usage": _choice(UsageSent),
    "role": _choice(Role),
    "framing": _choice(Framing),
}

_TABLE = """\
timing
ttft MS | ms | ttft {} ms
    time from the arrival of the request to its first token (0)
itl MS | ms | itl {} ms
    time between two tokens (0)
jitter MS | ms | jitter {} ms
    add a random 0 to MS to the first token and to every gap (0)
input_cost US | us | {} µs per input token
    microseconds that each input token that is not cached adds to ttft, the same as ms per 1,000 tokens (0)

capacity
slots N | requests or off | {} slots | server_wide
    process at most N requests at a time; others wait in a queue, before ttft begins (no limit)
prefix_cache BLOCKS | blocks or off | a prefix cache of {} blocks | server_wide
    simulate a cache of BLOCKS blocks of prompt tokens and report cached_tokens (off)
block_size N | positive_tokens | {} tokens a block | server_wide
    tokens in a block of the prefix cache (16)

reply
tokens N | positive_tokens | {} tokens
    length of a reply if the request sets no limit (100)
chunk N | positive_tokens | {} tokens an event
    tokens in one event; the gap before it is N times itl (1)
token_words N | words | {} words a token
    words in the text of one token, each of which a client's tokenizer counts (1)
legacy_limit on|off | flag | max_completion_tokens ignored
    chat: ignore max_completion_tokens, as a server that knows only max_tokens does
reasoning N | tokens | {} of reasoning
    number of tokens at the start of a reply that are reasoning (0)
tools on|off | flag | tool calls
    reply with a tool call
refusal on|off | flag | refusals
    reply with a refusal
thoughts HOW | thoughts | reasoning as {}
    responses: send reasoning as summary or text (summary)
incomplete WHY | incomplete or off | incomplete for {}
    responses: end as incomplete because of max_output_tokens, if the request sets it, or content_filter
dimensions N | dimensions | {} dimensions
    length of an embedding if the request sets none (64)
seed N | seed | seed {}
    seed of the words, the jitter and the faults (0)
model NAME | text | model {} | server_wide
    model that /v1/models lists; requests may name any model

stream
usage WHEN | usage | usage {}
    when to send usage: asked, always or never (asked)
role HOW | role | role {}
    first event, with the role: on, off, or early (before ttft) (on)
finish on|off | flag | finish {}
    send a finish_reason (on)
done on|off | flag | done {}
    send data: [DONE] (on)
event_lines on|off | flag | event lines
    give every event an event: line
comments N | events | a comment every {} events
    send the comment ': ping' before every N-th event (0, none)
crlf on|off | flag | CR LF
    end event lines with CR LF

wire
separate on|off | flag | separate writes
    write every event separately, even if several are due at once
split MS | ms or off | writes cut, {} ms apart
    split every write at random bytes into 2 or 3, MS apart
framing HOW | framing | framing {}
    how a body ends: auto, chunked, length or eof (auto)
close on|off | flag | a connection a request
    close the connection after every reply
idle_close MS | ms or off | idle connections closed after {} ms | server_wide
    close connections that are idle for MS

faults
error STATUS | status or off | error {} | has_rate
    answer with this status
retry_after S | whole_seconds or off | retry after {} s
    Retry-After header of an error
stream_error K | tokens or off | an error object after {} tokens | has_rate
    after K tokens, send an error object instead of the rest
cut K | tokens or off | cut after {} tokens | has_rate
    close the connection after K tokens; 0 means before the head
reset on|off | flag | by a reset
    make the cut a TCP reset
stall S | seconds or off | a stall of {} s | has_rate
    send nothing for S seconds; inf means forever
stall_after K | tokens | after {} tokens
    number of tokens before the stall (1)
malformed K | tokens or off | bad JSON after {} tokens | has_rate
    after K tokens, send an event that is not JSON
slow_head S | finite_seconds or off | the head over {} s | has_rate
    send the head slowly, over S seconds
empty on|off | flag | empty bodies | has_rate
    answer with status 200 and no body
html on|off | flag | HTML bodies | has_rate
    answer with status 200 and an HTML page
content_type TYPE | text or off | Content-Type {} | has_rate
    send this wrong Content-Type
failed K | tokens or off | failed after {} tokens | has_rate
    responses: end as failed after K tokens; elsewhere: send an error object
"""
"""A line without a bar is a group. The columns of an option are its name and value, its parser, its summary and a mark."""


def _read_table(table: str) -> Iterator[Option]:
    group = ""
    for cells, text in table_rows(table):
        if len(cells) == 1:
            group = cells[0]
            continue
        names, kind, summary, mark = (*cells, "")[:4]
        name, metavar = names.split(" ")
        parse = _PARSERS[kind.removesuffix(" or off")]
        if kind.endswith(" or off"):
            parse = _or_off(parse)
        yield Option(name, group, parse, metavar, text, summary, mark == "server_wide")
        if mark == "has_rate":
            rate_text = f"share of requests with the fault {name} (1)"
            yield Option(f"{name}_rate", group, _PARSERS["share"], "SHARE", rate_text)


OPTIONS: tuple[Option, ...] = tuple(_read_table(_TABLE))
