"""What a resource file may name in a guardrail: detectors, and valid regular expressions."""

from __future__ import annotations

import regex

DETECTOR_NAMES = (
    "email",
    "china_mobile",
    "china_id_card",
    "bank_card",
    "us_ssn",
    "ip_address",
    "api_key",
    "jwt",
    "private_key",
)
"""The keys of `guardrails.detectors.DETECTORS`."""


def regex_error(pattern: str) -> str | None:
    """Return the error in a pattern, or None. The message does not quote the pattern."""
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        reason, _, position = str(error).partition(" at position")
        reason = reason.split(" \\")[0]  # "bad escape \\q" quotes the pattern
        position = f" at position{position}" if position else ""
        return f"is not a valid regular expression: {reason}{position}"
    except (ValueError, OverflowError, RecursionError):
        return "is not a valid regular expression"
    if compiled.search("") is not None:
        return "matches the empty text, so it would match everything"
    return None
