"""The models of the conversations of a run."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.runs.choose_models import choose_models
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings


def settings_for(line: str) -> Settings:
    return resolve(parse(PROFILE, ["--random-seed", "5", *line.split()]))


def chosen(line: str, count: int = 4000) -> list[str]:
    return list(islice(choose_models(settings_for(line)), count))


def test_models_take_turns_by_default() -> None:
    assert chosen("-m a,b", 5) == ["a", "b", "a", "b", "a"]


def test_random_selection_has_equal_shares_and_is_repeatable() -> None:
    line = "-m a,b --model-selection-strategy random"
    assert 1900 < Counter(chosen(line))["a"] < 2100
    assert chosen(line) == chosen(line) != chosen("-m a,b")


@pytest.mark.parametrize("line", ["-m a,b,c --model-weights 3,1,0", "-m a,b,c --model-weights 0.75,0.25,0"])
def test_weighted_selection_has_the_shares_of_the_weights(line: str) -> None:
    counts = Counter(chosen(line))
    assert counts.keys() == {"a", "b"}
    assert 2900 < counts["a"] < 3100


def test_weights_reach_the_input_config() -> None:
    models = input_config(settings_for("-m a,b --model-weights 3,1"))["models"]
    assert models == {"strategy": "weighted", "items": [{"name": "a", "weight": 3}, {"name": "b", "weight": 1}]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-m a,b --model-selection-strategy weighted", "give --model-weights, such as 3,1"),
        ("-m a,b --model-weights 3", "one weight for each model: 2, not 1"),
        ("-m a,b --model-weights 3,x", "not 'x'"),
        ("-m a,b --model-weights 0,0", "must have a weight above 0"),
        ("-m a,b --model-weights=-1,2", "numbers of at least 0"),
        (
            "-m a,b --model-weights 1,2 --model-selection-strategy random",
            "applies to the selection weighted, not random",
        ),
    ],
)
def test_bad_weights_are_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(line)
    assert reason in str(caught.value)
