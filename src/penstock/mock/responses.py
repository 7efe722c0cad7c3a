"""POST /v1/responses: items and events as the OpenAI package knows them, and replies that a later request can refer to.

Reasoning comes as a summary or as text (option `thoughts`), then one item: a message with text or a refusal, or a function
call. Every event of a phase has its number in the stream from the tokens before it, so pieces can be cached like those of
other dialects.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from penstock.mock.dialect import STAMP, Ask, BadRequest, Event, Say, Span, count_tokens, limit
from penstock.mock.media import InputAudio, audio_tokens, image_tokens
from penstock.mock.vocabulary import words

__all__ = ["Responses"]

TOOL = "look_up"
KEPT = 10_000
"""Replies that can be referred to; the oldest go first."""
OPENING = 2
"""Events before the first item."""
HERE = "\x7fid\x7f"
"""Stands for the reply's id until a text is encoded."""
ROLES = ("user", "assistant", "system", "developer")
TEXTS = ("input_text", "output_text", "refusal", "summary_text", "reasoning_text")
encode = msgspec.json.encode


class Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    input_audio: InputAudio | None = None


class Item(msgspec.Struct):
    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ResponsesBody(msgspec.Struct):
    """The fields that decide the reply; the decoder skips the others without building them."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None


decode = msgspec.json.Decoder(ResponsesBody).decode


class Own(NamedTuple):
    """What is echoed, but not kept with what was rendered."""

    previous: str | None
    cached: int
    """Tokens of the replies referred to."""
    store: bool


class Responses:
    name = "responses"
    path = "/responses"
    kinds = True
    done: Event | None = None

    def __init__(self) -> None:
        self._kept: OrderedDict[str, int] = OrderedDict()
        """Tokens of a reply and of all before it, by the reply's id."""

    def read(self, body: bytes) -> Ask:
        wanted = decode(body)
        if not wanted.model:
            raise BadRequest("model is required", "model")
        if not wanted.input:
            raise BadRequest("input is required and must hold at least one item", "input")
        count = Count()
        count.text(wanted.instructions)
        count.input(wanted.input)
        cached = 0
        if wanted.previous_response_id is not None:
            kept = self._kept.get(wanted.previous_response_id)
            if kept is None:
                name = wanted.previous_response_id
                raise BadRequest(f"Previous response with id '{name}' not found.", "previous_response_id")
            cached = kept
        ask = Ask(
            wanted.model,
            cached + count.tokens,
            stream=bool(wanted.stream),
            limit=limit({"max_output_tokens": wanted.max_output_tokens}),
            include_usage=True,
            echo=(int(time.time()), wanted.instructions),
            own=Own(wanted.previous_response_id, cached, wanted.store is not False),
        )
        ask.images, ask.audios = count.images, count.audios
        return ask

    def stamp(self, say: Say, number: int, second: int) -> bytes:  # noqa: ARG002 -- the time is in what is echoed
        mark = b"%0*x" % (len(STAMP), number)  # as long as what it replaces: chunks have told their length
        if say.ask.own.store:
            self._kept["resp_" + mark.decode()] = say.ask.prompt_tokens + say.completion
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return mark

    def opening(self, say: Say) -> list[Event]:
        if say.behaviour.role == "off":
            return []
        response = {**response_object(say, "in_progress"), "output": [], "usage": None}
        return [
            event(name, number, response=response)
            for number, name in enumerate(("response.created", "response.in_progress"))
        ]

    def piece(self, say: Say, span: Span) -> list[Event]:
        phase = Phase(say, span.kind)
        found = phase.begin() if span.start == 0 else []
        found.append(phase.delta(span))
        return found + phase.end(span.start + span.size) if span.last else found

    def closing(self, say: Say) -> list[Event]:  # noqa: ARG002 -- the end holds counts
        return []

    def accounting(self, say: Say) -> list[Event]:
        if not say.behaviour.finish:
            return []
        status, reason = ending(say)
        response = {
            **response_object(say, status, reason),
            "output": msgspec.Raw(output(say, say.tokens)),
            "previous_response_id": say.ask.own.previous,
            "usage": usage(say, say.completion),
        }
        return [event(f"response.{status}", number_after(say, say.tokens), response=response)]

    def front(self, say: Say) -> bytes:
        status, reason = ending(say)
        response = {**response_object(say, status, reason), "output": msgspec.Raw(output(say, say.tokens))}
        return rendered(response)[:-1]

    def back(self, say: Say) -> bytes:
        rest = {"previous_response_id": say.ask.own.previous, "usage": usage(say, say.completion)}
        return b"," + encode(rest)[1:]

    def error(self, say: Say, sent: int) -> Event:
        told = {"code": "server_error", "message": "the mock was told to fail here", "param": None}
        return event("error", number_after(say, sent), **told)

    def failed(self, say: Say, sent: int) -> Event:
        return event("response.failed", number_after(say, sent), response=msgspec.Raw(self.failed_body(say, sent)))

    def failed_body(self, say: Say, sent: int) -> bytes:
        error = {"code": "server_error", "message": "the mock was told to fail"}
        response = response_object(say, "failed") | {"error": error, "usage": usage(say, sent)}
        return rendered({**response, "output": msgspec.Raw(output(say, sent))})


class Count:
    """What a request holds."""

    def __init__(self) -> None:
        self.tokens = self.images = self.audios = 0

    def text(self, text: str | None) -> None:
        if text:
            self.tokens += count_tokens(text)

    def input(self, given: str | list[Item]) -> None:
        if isinstance(given, str):
            self.text(given)
            return
        for at, item in enumerate(given):
            if item.type == "message" and item.role not in ROLES:
                raise BadRequest(f"role must be one of {', '.join(ROLES)}, not {item.role!r}", f"input[{at}].role")
            if item.type == "message" and not item.content:
                raise BadRequest("a message needs content", f"input[{at}].content")
            self.text(item.arguments)
            for content in (item.content, item.output):
                if isinstance(content, list):
                    for part in content:
                        self.part(part, f"input[{at}].content")
                else:
                    self.text(content)

    def part(self, part: Part, place: str) -> None:
        if part.type == "input_image":
            self.tokens += image_tokens(part.image_url, place)
            self.images += 1
        elif part.type == "input_audio":
            self.tokens += audio_tokens(part.input_audio, place)
            self.audios += 1
        elif part.type in TEXTS:
            self.text(part.text or part.refusal)
        else:
            raise BadRequest(f"there is no content of the type {part.type!r}", place)


class Phase:
    """The events of one item."""

    def __init__(self, say: Say, kind: str) -> None:
        self.say = say
        self.kind = kind
        behaviour = say.behaviour
        self.width = behaviour.chunk
        reasoned = bool(say.reasoning) and kind != "reasoning"
        self.index = 1 if reasoned else 0
        self.form: str = behaviour.thoughts if kind == "reasoning" else kind
        before = 0
        if reasoned:
            before = -(-say.reasoning // self.width) + 5
        self.first = OPENING + before
        self.name = {"reasoning": "rs_", "tools": "fc_"}.get(kind, "msg_") + HERE
        self.place: dict[str, Any] = {"item_id": self.name, "output_index": self.index}
        if self.form == "summary":
            self.place["summary_index"] = 0
        elif kind != "tools":
            self.place["content_index"] = 0

    @property
    def lead(self) -> int:
        """Events before the first delta."""
        return 1 if self.kind == "tools" else 2

    def begin(self) -> list[Event]:
        added = item_json(self.say, self.kind, None)
        found = [event("response.output_item.added", self.first, output_index=self.index, item=msgspec.Raw(added))]
        if self.kind != "tools":
            part = "reasoning_summary_part" if self.form == "summary" else "content_part"
            found.append(event(f"response.{part}.added", self.first + 1, **self.place, part=part_of(self.form, "")))
        return found

    def delta(self, span: Span) -> Event:
        number = self.first + self.lead + span.start // self.width
        more: dict[str, Any] = {"logprobs": []} if self.form == "content" else {}
        return event(EVENTS[self.form] + ".delta", number, **self.place, delta=text_of(self.say, span), **more)

    def end(self, tokens: int) -> list[Event]:
        number = self.first + self.lead + -(-tokens // self.width)
        text = text_of(self.say, Span(self.kind, 0, tokens, True))
        more: dict[str, Any] = {"logprobs": []} if self.form == "content" else {}
        if self.kind == "tools":
            more = {"name": TOOL}
        found = [event(EVENTS[self.form] + ".done", number, **self.place, **{FIELDS[self.form]: text}, **more)]
        if self.kind != "tools":
            part = "reasoning_summary_part" if self.form == "summary" else "content_part"
            found.append(event(f"response.{part}.done", number + 1, **self.place, part=part_of(self.form, text)))
        item = msgspec.Raw(item_json(self.say, self.kind, tokens))
        found.append(event("response.output_item.done", number + len(found), output_index=self.index, item=item))
        return found


EVENTS = {
    "summary": "response.reasoning_summary_text",
    "text": "response.reasoning_text",
    "content": "response.output_text",
    "refusal": "response.refusal",
    "tools": "response.function_call_arguments",
}
FIELDS = {"summary": "text", "text": "text", "content": "text", "refusal": "refusal", "tools": "arguments"}


def rendered(value: object) -> bytes:
    return encode(value).replace(HERE.encode(), STAMP)


def event(name: str, number: int, /, **fields: Any) -> Event:
    return Event(rendered({"type": name, "sequence_number": number, **fields}), name.encode())


def number_after(say: Say, tokens: int) -> int:
    """The number of an event that follows the first `tokens` tokens."""
    width = say.behaviour.chunk
    thought = min(say.reasoning, tokens)
    number = OPENING
    if thought:
        number += 2 + -(-thought // width) + (3 if thought == say.reasoning else 0)
    said = tokens - thought
    if said:
        ends = (2 if say.kind == "tools" else 3) if tokens == say.tokens else 0
        number += (1 if say.kind == "tools" else 2) + -(-said // width) + ends
    return number


def ending(say: Say) -> tuple[str, str | None]:
    """Status and reason."""
    reason = say.behaviour.incomplete
    if reason is None or (reason == "max_output_tokens" and say.ask.limit is None):
        return "completed", None
    return "incomplete", reason


def text_of(say: Say, span: Span) -> str:
    """Arguments open with their first token and close with their last."""
    kind, start, size, last = span
    found = words(say.behaviour.seed, say.variant + (kind == "reasoning"), start, size)
    if kind == "tools":
        if last:
            found[-1] = '"}'
        if start == 0:
            found[0] = "{}" if last and size == 1 else '{"words":"'
    return "".join(found)


def part_of(form: str, text: str) -> dict[str, Any]:
    if form == "summary":
        return {"type": "summary_text", "text": text}
    if form == "text":
        return {"type": "reasoning_text", "text": text}
    if form == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def item_json(say: Say, kind: str, tokens: int | None) -> bytes:
    """An output item with so many tokens of text; None while it has none."""
    text = "" if tokens is None else text_of(say, Span(kind, 0, tokens, True))
    return _item(kind, say.behaviour.thoughts, text, tokens is None)


@lru_cache(maxsize=512)
def _item(kind: str, thoughts: str, text: str, fresh: bool) -> bytes:
    status = "in_progress" if fresh else "completed"
    if kind == "tools":
        call = {"id": "fc_" + HERE, "type": "function_call", "status": status, "call_id": "call_" + HERE}
        return encode({**call, "name": TOOL, "arguments": text})
    if kind == "reasoning":
        summary = [part_of("summary", text)] if thoughts == "summary" and not fresh else []
        item: dict[str, Any] = {"id": "rs_" + HERE, "type": "reasoning", "summary": summary}
        return encode(item if thoughts == "summary" else {**item, "content": [] if fresh else [part_of("text", text)]})
    message = {"id": "msg_" + HERE, "type": "message", "role": "assistant", "status": status}
    return encode({**message, "content": [] if fresh else [part_of(kind, text)]})


def output(say: Say, tokens: int) -> bytes:
    """The items that the first `tokens` tokens make up."""
    thought = min(say.reasoning, tokens)
    found = [item_json(say, "reasoning", thought)] if thought else []
    if tokens > thought:
        found.append(item_json(say, say.kind, tokens - thought))
    return b"[" + b",".join(found) + b"]"


def response_object(say: Say, status: str, reason: str | None = None) -> dict[str, Any]:
    """All but the output, the usage and what the reply refers to."""
    ask = say.ask
    created, instructions = ask.echo
    return {
        "id": "resp_" + HERE,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": instructions,
        "max_output_tokens": ask.limit,
        "metadata": {},
        "model": ask.model,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def usage(say: Say, completion: int) -> dict[str, Any] | None:
    if not say.usage:
        return None
    prompt = say.ask.prompt_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": say.ask.own.cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": min(say.reasoning, completion)},
        "total_tokens": prompt + completion,
    }
