"""Shorten a server's error message to one line for the console. The artifacts keep the original text."""

from __future__ import annotations

import html
import json
import re
from typing import Any

_TRUNCATED_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')
"""The message in a JSON object that was truncated and does not parse."""
_HTML = re.compile(r"\s*(<!doctype html|<html|<head|<body)", re.IGNORECASE)
_HTML_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>?", re.IGNORECASE | re.DOTALL)


def one_line(message: str) -> str:
    """Return the message of a JSON error object, the text of an HTML page, or the message itself."""
    text = message
    if message.startswith("{"):
        text = _json_message(message) or message
    elif _HTML.match(message):
        text = html.unescape(_HTML_MARKUP.sub(" ", message))
    return " ".join(text.split()) or " ".join(message.split())


def _json_message(text: str) -> str | None:
    try:
        return _find_message(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        match = _TRUNCATED_MESSAGE.search(text)
        return None if match is None else _unescaped(match[1])


def _find_message(value: Any) -> str | None:
    """OpenAI's shape is {"error": {"message": …}}; other servers omit a level or use `detail`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("error", "message", "detail"):
            if value.get(key):
                return _find_message(value[key])
    return None


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
