"""A parser of the Prometheus text format, which also accepts OpenMetrics.

It is small because samples need little of the format, and because pages are read as differences (`telemetry.scrape`), which
no library does. The client library for Python would be another dependency of the core.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r'\s*([^{#\s]+)(?:\s*(\{[^"}]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"}]*)*\})\s*|\s+)(\S+)')
"""Name, labels and value. A time can follow the value, and an exemplar of OpenMetrics."""
_LABEL = re.compile(r'\s*([^=,\s]+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")
_SUFFIXES = ("_bucket", "_sum", "_count")


class Family(NamedTuple):
    name: str
    """Without the suffix `_total` of a counter."""
    type: str
    """`counter`, `gauge`, `histogram`, `summary` or `unknown`."""
    help: str


class Series(NamedTuple):
    """One line of a page, without its value."""

    name: str
    """As on the page, with suffixes such as `_bucket`."""
    labels: dict[str, str]
    family: Family


def parse_page(text: str) -> dict[int, tuple[Series, float]]:
    """Return the series of a page with their values, by the number of their line. Lines that are not readable are left out."""
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    result = {}
    for n, line in enumerate(text.split("\n")):
        if line.startswith("#"):
            _, keyword, name, rest = (*line.split(None, 3), "", "", "", "")[:4]
            if keyword in ("TYPE", "HELP"):
                (types if keyword == "TYPE" else helps)[name] = rest.strip()
            continue
        parts = split_line(line)
        value = None if parts is None else number(parts[1])
        if parts is not None and value is not None:
            name, _, labels = parts[0].partition("{")
            found = {key: _unescaped(text) for key, text in _LABEL.findall(labels)}
            result[n] = Series(name, found, _family(name, types, helps)), value
    return result


def split_line(line: str) -> tuple[str, str] | None:
    """Return the name with its labels, and the value, of a line. None for a comment or an empty line."""
    found = _LINE.match(line)
    return None if found is None else (found[1] + (found[2] or ""), found[3])


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _family(name: str, types: dict[str, str], helps: dict[str, str]) -> Family:
    declared = name
    for suffix in ("", *_SUFFIXES, "_total"):
        base = name.removesuffix(suffix)
        if base in types and (suffix not in _SUFFIXES or types[base] in ("histogram", "summary")):
            declared = base
            break
    kind = types.get(declared, "unknown").replace("untyped", "unknown")
    if kind == "unknown" and name.endswith("_total"):
        kind = "counter"
    shown = declared.removesuffix("_total") if kind == "counter" else declared
    return Family(shown, kind, helps.get(declared, ""))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text) if "\\" in text else text
