"""Settings of the warmup."""

from __future__ import annotations

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings, WarmupSettings

USERS = "--user-centric-rate 5 --num-users 2 --session-turns-mean 3"


def settings_for(line: str) -> Settings:
    return resolve(parse(PROFILE, ["--model", "m", *line.split()]))


def test_every_warmup_flag_reaches_its_setting() -> None:
    settings = settings_for(
        "--warmup-request-count 9 --num-warmup-sessions 4 --warmup-duration 5 --warmup-grace-period inf "
        "--warmup-concurrency 8 --warmup-prefill-concurrency 3 --warmup-request-rate 7 --warmup-arrival-pattern constant "
        "--warmup-concurrency-ramp-duration 1 --warmup-prefill-concurrency-ramp-duration 2 "
        "--warmup-request-rate-ramp-duration 3"
    )
    assert settings.warmup == WarmupSettings(
        requests=9,
        conversations=4,
        duration_s=5.0,
        grace_s=float("inf"),
        concurrency=8,
        prefill_concurrency=3,
        rate=7.0,
        arrivals="constant",
        concurrency_ramp_s=1.0,
        prefill_ramp_s=2.0,
        rate_ramp_s=3.0,
        rate_is_unlimited=True,
    )
    warmup, profiling = input_config(settings)["phases"]
    assert (warmup["type"], warmup["rate"], warmup["sessions"], warmup["grace_period"]) == ("constant", 7.0, 4, "inf")
    assert (profiling["type"], profiling["concurrency"]) == ("concurrency", 1)


def test_rate_of_the_warmup_is_limited_by_a_concurrency_that_is_given() -> None:
    for flags, concurrency in (("", None), (" --concurrency 1", 1)):
        settings = settings_for("--warmup-request-count 9 --warmup-request-rate 7" + flags)
        load = settings.warmup.load(settings.load)
        assert load is not None
        assert load.concurrency == concurrency


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--warmup-concurrency 3",
            "--warmup-concurrency shapes the warmup, but there is none; add --warmup-request-count",
        ),
        (
            "--warmup-request-rate 3 --warmup-request-count 0",
            "--warmup-request-rate shapes the warmup, but there is none",
        ),
        ("--num-warmup-sessions 3 --warmup-grace-period 1", "but --warmup-duration is missing"),
        ("--warmup-duration 1 --warmup-arrival-pattern gamma", "but the warmup has none; add --warmup-request-rate"),
        ("--warmup-duration 1 --warmup-request-rate-ramp-duration 1", "but the warmup has none"),
        (
            "--warmup-duration 1 --warmup-arrival-pattern concurrency-burst --warmup-request-rate 4",
            "concurrency_burst has no rate; leave out --warmup-request-rate",
        ),
        (
            "--warmup-duration 1 --request-rate 3 --warmup-concurrency-ramp-duration 2",
            "is the time to reach a value that is missing; add --warmup-concurrency or --concurrency",
        ),
        ("--warmup-duration 1 --warmup-prefill-concurrency-ramp-duration 2", "add --warmup-prefill-concurrency or"),
        (
            "--warmup-duration 1 --warmup-concurrency 2 --warmup-prefill-concurrency 3",
            "--warmup-prefill-concurrency 3 is above the concurrency of the warmup, 2",
        ),
        (
            f"{USERS} --warmup-duration 1 --warmup-arrival-pattern constant",
            "users of --user-centric-rate send in a fixed",
        ),
        ("--num-warmup-sessions 0", "--num-warmup-sessions must be a whole number of at least 1"),
    ],
)
def test_contradicting_warmup_flags_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(line)
    assert sentence in str(caught.value)
