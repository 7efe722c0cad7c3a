"""Distributions of lengths on the command line."""

from __future__ import annotations

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import InputSettings, LengthPair


def input_for(*flags: str) -> InputSettings:
    return resolve(parse(PROFILE, ["--model", "m", *flags])).input


@pytest.mark.parametrize(
    "text",
    [
        "256|10,128:40;512,256|5:60",
        "[(256|10,128):40,(512,256|5):60]",
        '{"pairs": [{"isl":256,"isl_stddev":10,"osl":128,"prob":40}, {"isl":512,"osl":256,"osl_stddev":5,"prob":60}]}',
    ],
)
def test_each_syntax_of_pairs_is_read(text: str) -> None:
    pairs = (LengthPair(40, 256, 10, 128, 0), LengthPair(60, 512, 0, 256, 5))
    assert input_for("--seq-dist", text).length_pairs == pairs


def test_pairs_reach_the_input_config() -> None:
    (data,) = input_config(resolve(parse(PROFILE, ["-m", "m", "--seq-dist", "8,4:100"])))["datasets"]
    (pair,) = data["prompts"]["sequence_distribution"]
    assert pair == {"isl": {"mean": 8, "stddev": 0}, "osl": {"mean": 4, "stddev": 0}, "probability": 100}


def test_range_ratio_is_one_number_or_two() -> None:
    assert input_for("--random-range-ratio", "0.5").range_ratio == (0.5, 0.5)
    assert input_for("--random-range-ratio", '{"input": 0.5, "output": 0}').range_ratio == (0.5, 0.0)
    assert input_for("--random-range-ratio", "1", "--random-corpus-style", "sglang").range_ratio == (1.0, 1.0)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--seq-dist", "256,128:40"), "must add up to 100, and these add up to 40"),
        (("--seq-dist", "256;128"), "'256' is no such pair"),
        (("--seq-dist", "[(1,2):100, x]"), "'x' is no such pair"),
        (("--seq-dist", "[]"), "the list is empty"),
        (("--seq-dist", "0,128:100"), "a length must be from 1"),
        (("--seq-dist", '{"pairs": [{"isl": 1}]}'), "must look like"),
        (("--seq-dist", '{"pairs": [{"isl": 1, "osl": 1, "prob": -1}]}'), "a percentage must be at least 0"),
        (("--seq-dist", "1,2:100", "--isl", "5"), "--seq-dist and --isl both set the lengths"),
        (("--seq-dist", "1,2:100", "--random-range-ratio", "0"), "both set the lengths"),
        (("--random-range-ratio", "0.2", "--isl-stddev", "5"), "both set the lengths"),
        (("--random-range-ratio", "1"), "must be at least 0 and below 1, not 1"),
        (("--random-range-ratio", "1.1", "--random-corpus-style", "sglang"), "must be from 0 to 1, not 1.1"),
        (("--random-range-ratio", "half"), "must be a number such as 0.3"),
        (("--random-corpus-style", "sglang"), "--random-range-ratio is missing"),
        (("--seq-dist", "1,2:100", "--input-file", "/dev/null"), "applies to synthetic prompts"),
    ],
)
def test_bad_lengths_are_refused_with_the_reason(flags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError) as caught:
        input_for(*flags)
    assert reason in str(caught.value)
