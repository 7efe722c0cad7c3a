"""A secret shows itself to nobody who does not ask for it by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import msgspec
import orjson
import pytest

from penstock.secrets import Secret

SECRET = Secret("sk-planted")


@pytest.mark.parametrize("show", [str, repr, "{}".format, "%s".__mod__, lambda secret: f"{[secret]}"])
def test_what_is_shown_of_it(show: Callable[[Secret], str]) -> None:
    assert "sk-planted" not in show(SECRET)


@pytest.mark.parametrize(
    "take",
    [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        Secret.__getstate__,
        orjson.dumps,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        vars,
    ],
)
def test_how_it_refuses(take: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as refused:
        take(SECRET)
    assert "sk-planted" not in str(refused.value)


def test_two_with_the_same_value_are_the_same() -> None:
    assert Secret("sk-planted") == SECRET
    assert hash(SECRET) == hash(Secret("sk-planted"))
    assert Secret("sk-other") != SECRET
    assert SECRET != "sk-planted"
    assert SECRET.reveal() == "sk-planted"
