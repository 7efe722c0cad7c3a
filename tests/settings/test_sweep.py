"""Combinations of values of a sweep."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from penstock.settings.command_line import CommandLine
from penstock.settings.flags import FLAGS, GROUPS
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.sweep import Combination, combinations

PROFILE = CommandLine("profile", "", groups=GROUPS)


def combine(flags: str) -> list[Combination]:
    return combinations(parse(PROFILE, ["--model", "m", *flags.split()]))


def test_grid_has_all_combinations_in_the_order_of_the_command_line() -> None:
    made = combine("--isl 10,20 --concurrency 1,2 --osl 5")
    assert [each.parameters for each in made] == [
        {"isl": 10, "concurrency": 1},
        {"isl": 10, "concurrency": 2},
        {"isl": 20, "concurrency": 1},
        {"isl": 20, "concurrency": 2},
    ]
    settings = resolve(made[2].arguments)
    assert (settings.input.input_tokens_mean, settings.load.concurrency, settings.input.output_tokens_mean) == (
        20,
        1,
        5,
    )


def test_zip_takes_the_values_of_all_lists_together() -> None:
    made = combine("--request-rate 1,2.5 --request-count 10,10 --sweep-type zip")
    assert [each.parameters for each in made] == [
        {"request_rate": 1, "request_count": 10},
        {"request_rate": 2.5, "request_count": 10},
    ]


def test_single_values_are_one_combination_without_parameters() -> None:
    assert [each.parameters for each in combine("--concurrency 4")] == [{}]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--concurrency 1,2 --isl 1,2,3 --sweep-type zip", "--concurrency has 2 values and --isl has 3."),
        ("--concurrency 1,2,1", "The sweep has concurrency 1 twice; its points must differ."),
        (f"--concurrency {','.join(map(str, range(1, 1002)))}", "The sweep has 1,001 points, and at most 1,000"),
    ],
)
def test_lists_that_do_not_fit_are_refused(flags: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        combine(flags)
    assert sentence in str(error.value)


def test_parameters_have_different_names() -> None:
    names = [flag.parameter for flag in FLAGS if flag.sweepable]
    assert len(names) == len(set(names))
    assert {"concurrency", "request_rate", "isl", "osl", "prefill_concurrency", "request_count"} <= set(names)
