"""A secret can be read only with `reveal()`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import msgspec
import orjson
import pytest

from penstock.secrets import RedactedSecret, Secret

SECRET = Secret("sk-planted")


@pytest.mark.parametrize("show", [str, repr, "{}".format, "%s".__mod__, lambda secret: f"{[secret]}"])
def test_formatting_does_not_show_the_value(show: Callable[[Secret], str]) -> None:
    assert "sk-planted" not in show(SECRET)


@pytest.mark.parametrize(
    "serialise",
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
def test_serialising_and_copying_raise_without_showing_the_value(serialise: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as refused:
        serialise(SECRET)
    assert "sk-planted" not in str(refused.value)


def test_secrets_compare_by_value() -> None:
    assert Secret("sk-planted") == SECRET
    assert hash(SECRET) == hash(Secret("sk-planted"))
    assert Secret("sk-other") != SECRET
    assert SECRET != "sk-planted"
    assert SECRET.reveal() == "sk-planted"


def test_redacted_secret_can_be_shown_and_stored() -> None:
    redacted = RedactedSecret("http://<redacted>@proxy")
    assert f"{redacted} {[redacted]}" == "http://<redacted>@proxy [http://<redacted>@proxy]"
    assert pickle.loads(pickle.dumps(redacted)) == copy.copy(redacted) == redacted
    assert str(RedactedSecret()) == "<redacted>"
