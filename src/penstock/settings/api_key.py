"""Reads the API key from where the flags say: the command line, a file, standard input or the environment."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import UserError
from penstock.secrets import Secret

KEY_FIELDS = ("api_key", "api_key_file", "api_key_env")
"""The fields of the flags that give a key, without the `endpoint.` of their targets."""
DEFAULT_VARIABLE = "OPENAI_API_KEY"
_OPENAI = "api.openai.com"


def read_key(field: str, value: Any, spelling: str) -> Secret:
    """Return the key that one of the fields gives, or raise `UserError`, which does not show the key."""
    if field == "api_key_file":
        text, source = _from_file(value, spelling), f"{spelling} {value!r}"
    elif field == "api_key_env":
        text, source = os.environ.get(value, ""), f"The environment variable {value} ({spelling})"
    elif value == "-":
        text, source = _from_stdin(spelling), f"Standard input ({spelling} -)"
    else:
        text, source = value, spelling
    return _checked(text, source)


def default_key(urls: tuple[str, ...]) -> Secret | None:
    """Return the key in OPENAI_API_KEY if every URL is one of OpenAI or of this machine; no other server may get it."""
    text = os.environ.get(DEFAULT_VARIABLE, "")
    if not text.strip() or not all(map(_may_have_default_key, urls)):
        return None
    return _checked(text, f"The environment variable {DEFAULT_VARIABLE}")


def _may_have_default_key(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https"):
        return False
    return (host == _OPENAI and parts.scheme == "https") or host in ("localhost", "::1") or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    from ipaddress import IPv4Address

    try:
        return IPv4Address(host).is_loopback
    except ValueError:
        return False


def _from_file(path: str, spelling: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(1 << 16)
    except UnicodeDecodeError:
        raise UserError(f"{spelling} {path!r} is not a text file.") from None
    except OSError as error:
        raise UserError(f"{spelling} {path!r} cannot be read: {error.strerror}.") from None


def _from_stdin(spelling: str) -> str:
    if sys.stdin is None:
        raise UserError(f"{spelling} - reads the key from standard input, which is closed.")
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("API key: ")
    return sys.stdin.readline()


def _checked(text: str, source: str) -> Secret:
    key = text.strip()
    if not key:
        raise UserError(f"{source} has no API key.")
    if not key.isascii() or not key.isprintable():
        raise UserError(f"{source} has a character that an HTTP header cannot contain (the key is not shown).")
    return Secret(key)
