"""Settings of users that each send in a fixed interval."""

from __future__ import annotations

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings

USERS = "--user-centric-rate 5 --num-users 10 --session-turns-mean 3"


def settings_for(line: str) -> Settings:
    return resolve(parse(PROFILE, ["--model", "m", *line.split()]))


def test_users_reach_settings_folder_and_input_config() -> None:
    settings = settings_for(f"{USERS} --request-count 20")
    assert (settings.load.user_rate, settings.load.users, settings.load.concurrency) == (5.0, 10, None)
    assert settings.output.folder == "artifacts/m-chat-user_centric-users10-qps5.0"
    (phase,) = input_config(settings)["phases"]
    assert (phase["type"], phase["users"], phase["rate"]) == ("user_centric", 10, 5.0)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--num-users 3",
            "--num-users is the number of users of --user-centric-rate, but --user-centric-rate is missing",
        ),
        ("--user-centric-rate 3 --session-turns-mean 2", "--user-centric-rate needs the number of users"),
        ("--user-centric-rate 3 --num-users 3", "add --conversation-turn-mean of 2 or more"),
        (f"{USERS} --request-rate 3", "both set the rate; keep one of them"),
        (f"{USERS} --conversation-rate 3", "both set the rate; keep one of them"),
        (f"{USERS} --arrival-pattern constant", "and --arrival-pattern sets the gaps between the requests"),
        (f"{USERS} --arrival-pattern concurrency_burst", "concurrency_burst has no rate"),
        (f"{USERS} --arrival-smoothness 2", "and --arrival-smoothness sets the gaps between the requests"),
        (f"{USERS} --request-rate-ramp-duration 2", "and --request-rate-ramp-duration changes the rate over time"),
        (f"{USERS} --session-turn-delay-mean 9", "and --session-turn-delay-mean sets another time between two turns"),
        (f"{USERS} --num-requests 9", "--num-requests 9 is below --num-users 10, so some users would send nothing"),
        (f"{USERS} --num-sessions 9", "--num-sessions 9 is below --num-users 10, so some users would send nothing"),
    ],
)
def test_contradicting_user_flags_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(line)
    assert sentence in str(caught.value)
