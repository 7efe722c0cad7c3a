"""The `single_turn` format: a prompt a line; lines with the same session_id are sent in order, each by itself."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.draws import conversation_ids
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import Problems, explain, numbered_lines
from penstock.errors import UserError
from penstock.settings.model import InputSettings

__all__ = ["FORMAT", "read"]

_MEDIA = ("image", "images", "audio", "audios", "video", "videos", "image_uuids")
_NAME = "single_turn"


class _Named(msgspec.Struct):
    contents: list[str]
    name: str | None = None


class _Line(msgspec.Struct):
    text: str | None = None
    texts: list[str | _Named] | None = None
    role: str | None = None
    session_id: str | int | None = None
    output_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    extra: dict[str, Any] | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None
    type: Any = None  # said its say when the format was detected
    image: Any = None
    images: Any = None
    audio: Any = None
    audios: Any = None
    video: Any = None
    videos: Any = None
    image_uuids: Any = None


_FIELDS = frozenset(_Line.__struct_fields__)


def _matches(first: dict[str, Any]) -> bool:
    if isinstance(first.get("messages"), list) or isinstance(first.get("turns"), list):
        return False
    # `text` can be an object in a request body of another dialect, so its type counts.
    has_text = isinstance(first.get("text"), str) or isinstance(first.get("texts"), list)
    return has_text or any(first.get(field) for field in _MEDIA)


def read(path: str, settings: InputSettings) -> Contents:
    problems = Problems(path)
    decode = msgspec.json.Decoder(_Line).decode
    sessions: dict[str | int, list[Turn]] = {}
    """Keyed by the session id, or by the line number where there is none, in order of first appearance."""
    unused: set[str] = set()
    empty = True
    for number, line in numbered_lines(path, problems):
        empty = False
        try:
            entry = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problems.add(number, explain(error, line))
            continue
        reason = _fault(entry)
        if reason:
            problems.add(number, reason)
            continue
        session = number if entry.session_id in (None, "") else str(entry.session_id)
        sessions.setdefault(session, []).append(_turn(entry))
        if len(unused) < 100 and number <= 1000:
            unused.update(msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() - _FIELDS)
    problems.raise_any()
    if empty:
        raise UserError(f"The input file '{path}' is empty; give --input-file a file with a JSON object a line.")
    ids = conversation_ids(settings.seed, sessions)
    conversations = [
        Conversation(id=session if isinstance(session, str) else next(ids), turns=tuple(turns))
        for session, turns in sessions.items()
    ]
    return Contents(conversations, _note(path, unused))


def _fault(entry: _Line) -> str | None:
    if field := next((field for field in _MEDIA if getattr(entry, field)), None):
        return f"it has '{field}', and this version sends text only"
    if entry.text is not None and entry.texts is not None:
        return "it has both 'text' and 'texts'; keep one"
    if entry.timestamp is not None and entry.delay is not None:
        return "it has both 'timestamp' and 'delay'; keep one"
    if entry.role == "":
        return "'role' is empty"
    if not any(_texts(entry)):
        return "it has no text: give it 'text' or 'texts'"
    return None


def _texts(entry: _Line) -> tuple[str, ...]:
    if entry.texts is None:
        return (entry.text,) if entry.text else ()
    texts: list[str] = []
    for item in entry.texts:
        texts.extend((item,) if isinstance(item, str) else item.contents)
    return tuple(texts)


def _turn(entry: _Line) -> Turn:
    return Turn(
        texts=_texts(entry),
        role=entry.role or "user",
        output_tokens=entry.output_length,
        extra=entry.extra or {},
        delay_ms=entry.delay or 0.0,
        timestamp_ms=entry.timestamp,
    )


def _note(path: str, unused: set[str]) -> str | None:
    if not unused:
        return None
    shown = ", ".join(f"'{field}'" for field in sorted(unused)[:5]) + (", …" if len(unused) > 5 else "")
    return f"{path}: the format {_NAME} does not use {shown}."


FORMAT = Format(name=_NAME, needs="a JSON object a line, with 'text' or a list 'texts'", matches=_matches, read=read)
