"""Makes settings from the parsed flags, the file of `--config` and, for a trace, its first row."""

from __future__ import annotations

from penstock.settings.flag_values import ParsedArguments
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings

__all__ = ["read_settings", "with_config"]


def read_settings(parsed: ParsedArguments, folder_prefix: str = "") -> Settings:
    """Raise `UserError` for values that are missing or contradict each other."""
    parsed = with_config(parsed)
    if _is_timed_trace(parsed):
        parsed.values["load.schedule.on"] = True
    return resolve(parsed, folder_prefix)


def with_config(parsed: ParsedArguments) -> ParsedArguments:
    """Return the values of the flags and, for what they leave open, of the file of `--config`."""
    if "config" not in parsed.values:
        return parsed
    from penstock.settings.config.overlay import overlay  # imports PyYAML

    return overlay(parsed)


def _is_timed_trace(parsed: ParsedArguments) -> bool:
    """Return whether to follow a trace's timestamps: as in AIPerf, unless another flag sets the times."""
    values = parsed.values
    if (
        not {"input.file", "input.format"} <= values.keys()
        or {"load.schedule.on", "load.rate", "load.conversation_rate"} & values.keys()
    ):
        return False
    from penstock.datasets.registry import find

    format_ = find(values["input.format"])
    return format_ is not None and format_.has_times is not None and format_.has_times(values["input.file"])
