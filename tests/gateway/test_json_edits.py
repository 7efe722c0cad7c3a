"""Renaming members and adding defaults in JSON bytes, without changing other bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.json_edits import with_members

NAMES = st.sampled_from(["a", "b", "c", "d", "é", 'q"', "\\"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(['"a":1', ",", "}", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def expected(members: dict[str, Any], renames: dict[str, str], defaults: dict[str, Any]) -> dict[str, Any]:
    result = dict(members)
    for old, new in renames.items():
        if old in result:
            value = result.pop(old)
            result.setdefault(new, value)
    return defaults | result


def rewritten(data: bytes, renames: dict[str, str], defaults: dict[str, Any]) -> bytes:
    return with_members(
        data,
        {old.encode(): new.encode() for old, new in renames.items()},
        {name.encode(): json.dumps(value).encode() for name, value in defaults.items()},
    )


@given(
    members=st.dictionaries(NAMES, VALUES, min_size=1, max_size=6),
    renames=st.dictionaries(NAMES, NAMES, max_size=3),
    defaults=st.dictionaries(NAMES, VALUES, max_size=3),
    ascii_only=st.booleans(),
    spaces=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")]),
    indent=st.sampled_from([None, 2]),
)
def test_with_members_equals_the_same_change_on_parsed_json(
    members: dict[str, Any],
    renames: dict[str, str],
    defaults: dict[str, Any],
    ascii_only: bool,
    spaces: tuple[str, str],
    indent: int | None,
) -> None:
    data = json.dumps(members, ensure_ascii=ascii_only, separators=spaces, indent=indent).encode()
    assert json.loads(rewritten(data, renames, defaults)) == expected(members, renames, defaults)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{ "a" : 1.0e2 , "n":12345678901234567890123 }\n', '{ "b" : 1.0e2 , "n":12345678901234567890123 ,"z":[1]}\n'),
        ('{"x":"half \\ud83d", "a":"\\u0041"}', '{"x":"half \\ud83d", "b":"\\u0041","z":[1]}'),
        ('{"z":null,"in":{"a":1},"\\u0061":2}', '{"z":null,"in":{"a":1},"b":2}'),
        ('{"b":1,"a":2}', '{"b":1,"z":[1]}'),
        ('{"a":2, "b":1 , "z":0}', '{"b":1 , "z":0}'),
    ],
)  # fmt: skip
def test_with_members_keeps_all_other_bytes(before: str, after: str) -> None:
    assert rewritten(before.encode(), {"a": "b"}, {"z": [1]}) == after.encode()


def test_with_members_accepts_deep_nesting() -> None:
    deep = "[" * 5000 + "]" * 5000
    data = f'{{"a":{deep}}}'.encode()
    assert rewritten(data, {"a": "b"}, {"z": 1}) == f'{{"b":{deep},"z":1}}'.encode()
