"""Checks the settings of a load of users (`--user-centric-rate`)."""

from __future__ import annotations

from typing import Any

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments

_FIXED_TIMES = {
    "load.arrivals": "sets the gaps between the requests",
    "load.smoothness": "sets the gaps between the requests",
    "load.rate_ramp_s": "changes the rate over time",
    "input.conversation.delay_mean_ms": "sets another time between two turns",
    "input.conversation.delay_stddev_ms": "sets another time between two turns",
}
"""Targets that contradict the fixed interval of a user, and why."""


def check_users(parsed: ParsedArguments, fields: dict[str, Any]) -> None:
    """Raise `UserError` if the fields of the load do not describe users that can hold conversations."""
    spelling = parsed.spellings.get
    if "user_rate" not in fields:
        return
    name = spelling("load.user_rate")
    if "users" not in fields:
        raise UserError(f"{name} needs the number of users that share the rate; add --num-users.")
    for target, reason in _FIXED_TIMES.items():
        if target in parsed.values:
            raise UserError(
                f"{name} lets every user send in a fixed interval, and {spelling(target)} {reason}; leave one of them out."
            )
    for field in ("requests", "conversations"):
        if fields.get(field, fields["users"]) < fields["users"]:
            raise UserError(
                f"{spelling(f'load.{field}')} {fields[field]} is below {spelling('load.users')} {fields['users']}, so some "
                "users would send nothing; give at least one for each user."
            )
    if "input.file" not in parsed.values and parsed.values.get("input.conversation.turns_mean", 1) < 2:
        raise UserError(
            f"{name} is a load of conversations, and synthetic ones have one turn by default; add "
            "--conversation-turn-mean of 2 or more."
        )
