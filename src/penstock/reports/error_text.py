"""What a server said of a failure, in one line for people. The artifacts keep the text as it came."""

from __future__ import annotations

import html
import json
import re
from typing import Any

__all__ = ["one_line"]

_CUT_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')
"""In an object that was cut off, so that it is no JSON any more."""
_HTML = re.compile(r"\s*(<!doctype html|<html|<head|<body)", re.IGNORECASE)
_UNSEEN = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>?", re.IGNORECASE | re.DOTALL)


def one_line(message: str) -> str:
    """The message of a JSON error object, the words of an HTML page, or the text itself."""
    text = message
    if message.startswith("{"):
        text = _of_object(message) or message
    elif _HTML.match(message):
        text = html.unescape(_UNSEEN.sub(" ", message))
    return " ".join(text.split()) or " ".join(message.split())


def _of_object(text: str) -> str | None:
    try:
        return _said(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        found = _CUT_MESSAGE.search(text)
        return None if found is None else _unescaped(found[1])


def _said(value: Any) -> str | None:
    """OpenAI and its likes say {"error": {"message": …}}, others leave out a level or call it `detail`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("error", "message", "detail"):
            if value.get(key):
                return _said(value[key])
    return None


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
