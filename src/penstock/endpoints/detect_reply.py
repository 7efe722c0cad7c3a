"""Replies whose dialect nobody named: found out from the reply itself.

Known by their marks are chat completions and completions (`choices`), responses (`type: response.…`), messages (`type:
message…`) and embeddings; besides them the common shapes of other servers, whose text stands under a telling key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from penstock.endpoints.messages_replies import MESSAGE_EVENTS, counted, read_message, read_message_stream
from penstock.endpoints.openai_common import read_whole
from penstock.endpoints.openai_streams import read_choices
from penstock.endpoints.openai_types import DONE, Chunk, error_failure
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.reply_errors import not_json
from penstock.endpoints.responses_replies import read_response, read_response_stream
from penstock.wire import sse

__all__ = ["Pick", "read_any_body", "read_any_stream", "texts_in"]

Pick = Callable[[Any], Any]
"""Takes what it wants out of a JSON value, or returns None."""

_TEXT_KEYS = (
    "text",
    "content",
    "response",
    "output",
    "result",
    "generated_text",
    "output_text",
    "completion",
    "answer",
)
_INNER_KEYS = ("message", "delta", "token", "data", "choice", "generation")
_PROMPT_KEYS = ("messages", "input", "inputs", "prompt", "text", "texts", "query", "instructions", "system", "contents")
_DEEPEST = 6


def read_any_body(body: bytes, pick: Pick | None = None, *, must_match: bool = False) -> Reply:
    """A reply that is not streamed. `pick` is asked first; `must_match` makes it the only one."""
    if not body.strip():
        reply = Reply()
        reply.failure = not_json(body)
        return reply
    found = _parse(body)
    if found is None:
        lines = _json_lines(body)
        if lines is None:
            return _plain_text(body)
        return _generic(lines, pick, must_match)
    if pick is not None:
        reply = _generic([found], pick, must_match)
        if reply.outputs or reply.vectors or must_match:
            return reply
    if isinstance(found, dict):
        if isinstance(found.get("choices"), list):
            return read_whole(body)
        if found.get("object") == "response" or isinstance(found.get("output"), list):
            return read_response(body)
        if found.get("type") == "message" and isinstance(found.get("content"), list):
            return read_message(found)
    return _generic([found], None, must_match=False)


def read_any_stream(body: bytes, pick: Pick | None = None, *, timed: bool, must_match: bool = False) -> Reply:
    events = sse.split(body)
    parsed = [None if data == DONE else _parse(data) for data in events.data]
    if pick is not None:
        reply = _generic(parsed, pick, must_match, events.ends)
        if reply.texts or must_match:
            return reply
    first = next((each for each in parsed if isinstance(each, dict) and each), {})
    kind = str(first.get("type") or "")
    if isinstance(first.get("choices"), list):
        delta = any(isinstance(choice, dict) and "delta" in choice for choice in first["choices"])
        return read_choices(body, b'"content":' if delta else b'"text":', timed=timed)
    if kind.startswith("response."):
        return read_response_stream(body, timed=timed)
    if kind in MESSAGE_EVENTS and any(_type(each).startswith(("message_", "content_block")) for each in parsed):
        return read_message_stream(parsed, events.ends)
    texts = [_text_event(data, each) for data, each in zip(events.data, parsed, strict=True)]
    return _generic(texts, None, False, events.ends)


def _text_event(data: bytes, parsed: Any) -> Any:
    """Some servers send bare text in their events."""
    if parsed is not None or data == DONE:
        return parsed
    return {"text": data.decode("utf-8", "replace")}


def _type(found: Any) -> str:
    return str(found.get("type") or "") if isinstance(found, dict) else ""


def _generic(values: Iterable[Any], pick: Pick | None, must_match: bool, ends: list[int] | None = None) -> Reply:
    """Text and embeddings of one value or, with `ends`, of the events of a stream."""
    reply = Reply()
    reply.done = True
    missed = 0
    for index, found in enumerate(values):
        if isinstance(found, dict):
            if (error := found.get("error")) and not isinstance(error, bool):
                reply.failure = error_failure(Chunk(error=error))
                break
            reply.usage = counted(found.get("usage")) or reply.usage
            for key in ("finish_reason", "stop_reason", "done_reason"):
                if isinstance(found.get(key), str):
                    reply.finish = [found[key]]
            if isinstance(found.get("model"), str):
                reply.model = found["model"]
        text, vectors = _taken(pick(found)) if pick is not None else _found(found, first=not reply.texts)
        reply.vectors += vectors
        missed += text is None and not vectors and found is not None
        if text:
            reply.texts.append(text)
            reply.ends.append(ends[index] if ends is not None else 0)
    if reply.texts:
        reply.outputs = ["".join(reply.texts)]
    elif must_match and reply.failure is None and not reply.vectors:
        reply.failure = Failure(
            "NoMatch", f"The response_field matched nothing in {missed} part(s) of the reply.", "server"
        )
    if ends is None:
        reply.texts, reply.ends = [], []
    return reply


def _found(found: Any, *, first: bool) -> tuple[str | None, int]:
    """The text of a value, or how many embeddings or ranked items it has."""
    if isinstance(found, str):
        return found, 0
    if isinstance(found, list):
        return _of_list(found)
    if not isinstance(found, dict):
        return None, 0
    if vectors := _vectors(found):
        return None, vectors
    if isinstance(token := found.get("token"), dict):  # text-generation-inference: the whole text follows at the end
        return None if token.get("special") else token.get("text"), 0
    return _text(found, first=first), 0


def _of_list(found: list[Any]) -> tuple[str | None, int]:
    if found and all(isinstance(item, int | float) for item in found):
        return None, 1
    if found and all(isinstance(item, list) for item in found):
        return None, len(found)
    texts = [text for item in found if (text := _found(item, first=True)[0])]
    return "".join(texts) or None, 0


def _vectors(found: dict[str, Any]) -> int:
    data = found.get("data")
    if isinstance(data, list):
        return sum(isinstance(item, dict) and "embedding" in item for item in data)
    for key in ("embeddings", "embedding"):
        if isinstance(vectors := found.get(key), list) and vectors:
            return len(vectors) if isinstance(vectors[0], list) else 1
    for key in ("rankings", "results"):
        if isinstance(ranked := found.get(key), list) and ranked and isinstance(ranked[0], dict):
            return len(ranked) if not any(_text(item, first=True) for item in ranked) else 0
    return 0


def _text(found: Any, *, first: bool, depth: int = 0) -> str | None:
    """What stands under the first telling key; `first` is false when text came before, so that a summary of it at the end
    of a stream does not count twice."""
    if isinstance(found, str):
        return found or None
    if isinstance(found, list):
        parts = [text for item in found if (text := _text(item, first=first, depth=depth + 1))]
        return "".join(parts) or None
    if not isinstance(found, dict) or depth > _DEEPEST:
        return None
    for key in _TEXT_KEYS:
        if key == "generated_text" and not first:
            continue
        value = found.get(key)
        if isinstance(value, str | list | dict) and (text := _text(value, first=first, depth=depth + 1)):
            return text
    for key in (*_INNER_KEYS, "results", "outputs", "generations", "candidates", "parts"):
        value = found.get(key)
        if isinstance(value, str | list | dict) and (text := _text(value, first=first, depth=depth + 1)):
            return text
    return None


def _taken(found: Any) -> tuple[str | None, int]:
    """What a JMESPath expression gave, as text or as a number of vectors."""
    if found is None or isinstance(found, str):
        return found or None, 0
    if isinstance(found, list):
        flat = [item for item in found if item is not None]
        if flat and all(isinstance(item, str) for item in flat):
            return "".join(flat) or None, 0
        if not flat:
            return None, 0
        text, vectors = _of_list(flat)
        return (text, vectors) if text or vectors else (json.dumps(found, ensure_ascii=False), 0)
    return json.dumps(found, ensure_ascii=False), 0


def texts_in(body: Any) -> list[str]:
    """The texts in a body of any shape that look like input."""
    if not isinstance(body, dict):
        return []
    texts: list[str] = []
    for key in _PROMPT_KEYS:
        _collect(body.get(key), texts, 0)
    return texts


def _collect(found: Any, texts: list[str], depth: int) -> None:
    if isinstance(found, str):
        texts.append(found)
    elif isinstance(found, list) and depth < _DEEPEST:
        for item in found:
            _collect(item, texts, depth + 1)
    elif isinstance(found, dict) and depth < _DEEPEST:
        for key in ("content", "text", "parts", "prompt", "query", "input"):
            _collect(found.get(key), texts, depth + 1)


def _parse(data: bytes) -> Any:
    """The JSON value, or None for what is none (and for null, which says as much)."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _json_lines(body: bytes) -> list[Any] | None:
    """Newline-delimited JSON, in which some servers stream."""
    lines = [_parse(line) for line in body.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all(isinstance(line, dict) for line in lines) else None


def _plain_text(body: bytes) -> Reply:
    reply = Reply()
    reply.outputs = [body.decode("utf-8", "replace")]
    reply.done = True
    return reply
