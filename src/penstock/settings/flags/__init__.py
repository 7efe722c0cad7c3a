"""The flag table of `profile`: every AIPerf flag, supported or not, and the flags that only Penstock has."""

from __future__ import annotations

from penstock.settings.flags.conversation import CONVERSATION
from penstock.settings.flags.endpoint import ENDPOINT, ENDPOINT_TYPES
from penstock.settings.flags.experiment import REPEATED, SEARCH, SWEEP
from penstock.settings.flags.flag import Flag, Group, Positional, UnsupportedFlag, by_spelling, expected_value
from penstock.settings.flags.input import INPUT, LENGTHS, TOKENIZER
from penstock.settings.flags.load import LOAD, SCHEDULE, USERS
from penstock.settings.flags.media import AUDIO, IMAGE
from penstock.settings.flags.output import OUTPUT, TELEMETRY, VERDICT
from penstock.settings.flags.rankings import RANKINGS
from penstock.settings.flags.server_calls import SERVER_CALLS
from penstock.settings.flags.synthesis import SYNTHESIS
from penstock.settings.flags.unsupported import UNSUPPORTED_FLAGS
from penstock.settings.flags.warmup import WARMUP

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

GROUPS = (
    ENDPOINT,
    SERVER_CALLS,
    LOAD,
    USERS,
    SCHEDULE,
    WARMUP,
    SWEEP,
    SEARCH,
    REPEATED,
    INPUT,
    LENGTHS,
    SYNTHESIS,
    CONVERSATION,
    IMAGE,
    AUDIO,
    RANKINGS,
    TOKENIZER,
    OUTPUT,
    VERDICT,
    TELEMETRY,
)
FLAGS = tuple(flag for group in GROUPS for flag in group.flags)
SPELLINGS = by_spelling((*UNSUPPORTED_FLAGS, *FLAGS))
