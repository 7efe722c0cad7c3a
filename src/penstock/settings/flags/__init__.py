"""The flags of `profile`: every AIPerf flag, supported or not, and the flags that only Penstock has."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group, Positional, UnsupportedFlag, by_spelling, expected_value
from penstock.settings.flags.table import ENDPOINT_TYPES, GROUPS
from penstock.settings.flags.unsupported import UNSUPPORTED_FLAGS

__all__ = [
    "ENDPOINT_TYPES",
    "FLAGS",
    "GROUPS",
    "SPELLINGS",
    "UNSUPPORTED_FLAGS",
    "Flag",
    "Group",
    "Positional",
    "UnsupportedFlag",
    "by_spelling",
    "expected_value",
]

FLAGS = tuple(flag for group in GROUPS for flag in group.flags)
SPELLINGS = by_spelling((*UNSUPPORTED_FLAGS, *FLAGS))
