"""Replies of an unknown API, whose form is detected.

Chat completions and completions are recognized by `choices`, responses by `type: response.…`, messages by `type:
message…`, and embeddings by their keys. In other replies the text is searched under keys that common servers use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from penstock.endpoints.json_replies import DONE, UNREADABLE, error_failure, not_json, parse_json
from penstock.endpoints.messages_replies import MESSAGE_EVENTS, read_any_usage, read_message, read_message_stream
from penstock.endpoints.openai_common import read_choices_body
from penstock.endpoints.openai_streams import read_choices_stream
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.responses_replies import read_response, read_response_stream
from penstock.plural import counted
from penstock.wire import sse

UNMATCHED_FIELD = "Replies in which the response_field matched nothing"
"""Warning of a reply. Without a match the form of the reply is detected."""

Extractor = Callable[[Any], Any]
"""Returns a part of a JSON value, or None."""

_TEXT_KEYS = (
    *("text", "content", "response", "output", "result", "generated_text", "output_text", "completion", "answer"),
    *("message", "delta", "token", "data", "choice", "generation"),
    *("results", "outputs", "generations", "candidates", "parts"),
)
"""Keys of a text, then of an object with a text, then of a list of these."""
_PROMPT_KEYS = ("messages", "input", "inputs", "prompt", "text", "texts", "query", "instructions", "system", "contents")
_MAX_DEPTH = 6


def read_any_body(body: bytes, extract: Extractor | None = None, *, must_match: bool = False) -> Reply:
    """Read an unstreamed reply. If `extract` finds nothing, detect the form, unless `must_match` is true."""
    if not body.strip():
        return Reply(not_json(body))
    value = _parse(body)
    values = _json_lines(body) if value is None else [value]
    if extract is None or values is None:
        return _detect_body(body, value, values)
    extracted = _read_values(values, extract, must_match)
    if extracted.outputs or extracted.vectors or must_match:
        return extracted
    reply = _detect_body(body, value, values)
    reply.warnings |= extracted.warnings
    return reply


def _detect_body(body: bytes, value: Any, values: list[Any] | None) -> Reply:
    """Read a body of an unknown form. `value` is None if it is not JSON, `values` if it is not JSON lines either."""
    if values is None:
        return _plain_text(body)
    if isinstance(value, dict):
        if isinstance(value.get("choices"), list):
            return read_choices_body(body)
        if value.get("object") == "response" or isinstance(value.get("output"), list):
            return read_response(body)
        if value.get("type") == "message" and isinstance(value.get("content"), list):
            return read_message(value)
    return _read_values(values, None, must_match=False)


def read_any_stream(body: bytes, extract: Extractor | None = None, *, timed: bool, must_match: bool = False) -> Reply:
    """Read a stream. If `extract` finds nothing, detect the form, unless `must_match` is true."""
    events = sse.split(body)
    parsed = [None if data == DONE else _parse(data) for data in events.data]
    warnings: dict[str, int] = {}
    if extract is not None:
        reply = _read_values(parsed, extract, must_match, events.ends)
        if reply.texts or must_match:
            return reply
        warnings = reply.warnings
    reply = _detect_stream(body, events, parsed, timed=timed)
    reply.warnings |= warnings
    return reply


def _detect_stream(body: bytes, events: sse.Events, parsed: list[Any], *, timed: bool) -> Reply:
    first = next((value for value in parsed if isinstance(value, dict) and value), {})
    first_type = str(first.get("type") or "")
    if isinstance(first.get("choices"), list):
        delta = any(isinstance(choice, dict) and "delta" in choice for choice in first["choices"])
        return read_choices_stream(body, b'"content":' if delta else b'"text":', timed=timed)
    if first_type.startswith("response."):
        return read_response_stream(body, timed=timed)
    if first_type in MESSAGE_EVENTS and any(_type(value).startswith(("message_", "content_block")) for value in parsed):
        return read_message_stream(parsed, events.ends)
    values = [_text_event(data, value) for data, value in zip(events.data, parsed, strict=True)]
    return _read_values(values, None, False, events.ends)


def _text_event(data: bytes, parsed: Any) -> Any:
    """Return the parsed value, or the data as text: some servers send text instead of JSON."""
    if parsed is not None or data == DONE:
        return parsed
    return {"text": data.decode("utf-8", "replace")}


def _type(value: Any) -> str:
    return str(value.get("type") or "") if isinstance(value, dict) else ""


def _read_values(
    values: Iterable[Any], extract: Extractor | None, must_match: bool, ends: list[int] | None = None
) -> Reply:
    """Read text and embeddings from parsed values; with `ends`, they are the events of a stream."""
    reply = Reply()
    reply.done = True
    missed = 0
    matched = False
    for index, value in enumerate(values):
        if isinstance(value, dict):
            if (error := value.get("error")) and not isinstance(error, bool):
                reply.failure = error_failure(error)
                break
            reply.usage = read_any_usage(value.get("usage")) or reply.usage
            for key in ("finish_reason", "stop_reason", "done_reason"):
                if isinstance(value.get(key), str):
                    reply.finish = [value[key]]
            if isinstance(value.get("model"), str):
                reply.model = value["model"]
        if extract is not None:
            found = extract(value)
            matched = matched or found not in (None, [])
            text, vectors = _read_extracted(found)
        else:
            text, vectors = _read_value(value, first=not reply.texts)
        reply.vectors += vectors
        missed += text is None and not vectors and value is not None
        if text:
            reply.texts.append(text)
            reply.ends.append(ends[index] if ends is not None else 0)
    if reply.texts:
        reply.outputs = ["".join(reply.texts)]
    elif extract is not None and not matched and reply.failure is None:
        if must_match:
            parts = counted(missed, "part")
            reply.failure = Failure("NoMatch", f"The response_field matched nothing in {parts} of the reply.", "user")
        else:
            reply.warnings = {UNMATCHED_FIELD: 1}
    if ends is None:
        reply.texts, reply.ends = [], []
    return reply


def _read_value(value: Any, *, first: bool) -> tuple[str | None, int]:
    """Return the text of a value and the number of its embeddings or ranked items."""
    if isinstance(value, str):
        return value, 0
    if isinstance(value, list):
        return _read_list(value)
    if not isinstance(value, dict):
        return None, 0
    if vectors := _count_vectors(value):
        return None, vectors
    if isinstance(token := value.get("token"), dict):  # text-generation-inference repeats the whole text at the end
        return None if token.get("special") else _find_text(token.get("text"), first=True), 0
    return _find_text(value, first=first), 0


def _read_list(items: list[Any]) -> tuple[str | None, int]:
    if items and all(isinstance(item, int | float) for item in items):
        return None, 1
    if items and all(isinstance(item, list) for item in items):
        return None, len(items)
    texts = [text for item in items if (text := _read_value(item, first=True)[0])]
    return "".join(texts) or None, 0


def _count_vectors(fields: dict[str, Any]) -> int:
    """Return the number of embeddings or ranked items."""
    data = fields.get("data")
    if isinstance(data, list):
        return sum(isinstance(item, dict) and "embedding" in item for item in data)
    for key in ("embeddings", "embedding"):
        if isinstance(vectors := fields.get(key), list) and vectors:
            return len(vectors) if isinstance(vectors[0], list) else 1
    for key in ("rankings", "results"):
        if isinstance(ranked := fields.get(key), list) and ranked and isinstance(ranked[0], dict):
            return len(ranked) if not any(_find_text(item, first=True) for item in ranked) else 0
    return 0


def _find_text(value: Any, *, first: bool, depth: int = 0) -> str | None:
    """Return the text under the first known key. `first` is false if earlier events had text: the whole text that some
    servers repeat at the end of a stream is then ignored."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        parts = [text for item in value if (text := _find_text(item, first=first, depth=depth + 1))]
        return "".join(parts) or None
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    for key in _TEXT_KEYS:
        if key == "generated_text" and not first:
            continue
        inner = value.get(key)
        if isinstance(inner, str | list | dict) and (text := _find_text(inner, first=first, depth=depth + 1)):
            return text
    return None


def _read_extracted(value: Any) -> tuple[str | None, int]:
    """Return the text and the number of vectors of an extractor's result."""
    if value is None or isinstance(value, str):
        return value or None, 0
    if isinstance(value, list):
        items = [item for item in value if item is not None]
        if items and all(isinstance(item, str) for item in items):
            return "".join(items) or None, 0
        if not items:
            return None, 0
        text, vectors = _read_list(items)
        return (text, vectors) if text or vectors else (json.dumps(value, ensure_ascii=False), 0)
    return json.dumps(value, ensure_ascii=False), 0


def input_texts(body: Any) -> list[str]:
    """Return the texts of a request body of any form, from the keys that usually contain input."""
    if not isinstance(body, dict):
        return []
    texts: list[str] = []
    for key in _PROMPT_KEYS:
        _collect_texts(body.get(key), texts, 0)
    return texts


def _collect_texts(value: Any, texts: list[str], depth: int) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            _collect_texts(item, texts, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for key in ("content", "text", "parts", "prompt", "query", "input"):
            _collect_texts(value.get(key), texts, depth + 1)


def _parse(data: bytes) -> Any:
    """Return the JSON value, or None if the data is not JSON."""
    try:
        return parse_json(data)
    except UNREADABLE:
        return None


def _json_lines(body: bytes) -> list[Any] | None:
    """Parse newline-delimited JSON, in which some servers stream; None if the body is something else."""
    lines = [_parse(line) for line in body.splitlines() if line.strip()]
    return lines if len(lines) > 1 and all(isinstance(line, dict) for line in lines) else None


def _plain_text(body: bytes) -> Reply:
    reply = Reply()
    reply.outputs = [body.decode("utf-8", "replace")]
    reply.done = True
    return reply
