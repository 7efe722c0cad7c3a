"""The YAML file of `--config`: AIPerf's keys, translated to the values of the flags."""

from __future__ import annotations

from penstock.settings.flag_values import ParsedArguments

__all__ = ["with_config"]


def with_config(parsed: ParsedArguments) -> ParsedArguments:
    """Return the values of the flags and, for what they leave open, those of the file that `config_file` names."""
    if "config_file" not in parsed.values:
        return parsed
    from penstock.settings.config.read import overlay  # imports PyYAML

    return overlay(parsed)
