"""The settings of a run as rows of name and value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from penstock.settings.schema import Settings

_MOST_CHARACTERS = 2_000


class SettingRow(NamedTuple):
    name: str
    value: str
    changed: bool
    """True if it differs from the default."""


def setting_rows(settings: Settings) -> list[SettingRow]:
    """Return all settings, by dotted names. The settings must be without credentials, as in the header of a log."""
    return list(_rows(settings, ""))


def changed_settings(runs: list[Settings]) -> list[tuple[str, list[str]]]:
    """Return the settings in which runs differ, with the value of each run. The folder and the command always differ."""
    tables = [{row.name: row.value for row in setting_rows(settings)} for settings in runs]
    found = []
    for name in dict.fromkeys(name for table in tables for name in table):
        values = [table.get(name, "") for table in tables]
        if name not in ("output.folder", "command") and len(set(values)) > 1:
            found.append((name, values))
    return found


def _rows(struct: msgspec.Struct, prefix: str) -> Iterator[SettingRow]:
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(value, msgspec.Struct):
            yield from _rows(value, f"{name}.")
            continue
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if name != "command":
            yield SettingRow(name, _text(value), value != default)


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, tuple) and value and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"
