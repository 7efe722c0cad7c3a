"""The table of keys: every flag has a key, and every key of AIPerf is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.settings.config.keys import (
    FLAGS_WITHOUT_KEY,
    KEYS,
    Alias,
    Distribution,
    Inverted,
    Row,
    Special,
    find_flag,
    flags_of,
    rows,
)
from penstock.settings.config.read import ConfigReader, read_config
from penstock.settings.flag_values import read_value
from penstock.settings.flags import FLAGS, SPELLINGS, Flag

AIPERF = (Path(__file__).parent / "aiperf_keys.txt").read_text().split()
REACHED = {flag.name: flag for _, row in rows() for flag in map(find_flag, flags_of(row))}


def test_every_supported_flag_has_a_key_or_a_reason() -> None:
    """For a flag that is named here, add a line to its section in `settings/config/keys.py`."""
    targets = {flag.target for flag in REACHED.values() if isinstance(flag, Flag)}
    without = {
        flag.name for flag in FLAGS if flag.name not in REACHED and (flag.target is None or flag.target not in targets)
    }
    assert without == FLAGS_WITHOUT_KEY.keys() - {"--extra-verbose"}  # whose target has a key
    assert FLAGS_WITHOUT_KEY.keys() <= {flag.name for flag in FLAGS}
    assert not FLAGS_WITHOUT_KEY.keys() & REACHED.keys()


def test_every_flag_of_the_table_exists_or_is_announced() -> None:
    assert REACHED.keys() - SPELLINGS.keys() <= {"--sweep"}


@pytest.mark.parametrize("path", AIPERF)
def test_every_key_of_aiperf_is_known(path: str) -> None:
    row: Row = KEYS
    for name in path.split("."):
        if isinstance(row, Mapping):
            row = row[name]


def test_every_special_form_can_be_read() -> None:
    special = [row.row if isinstance(row, Alias) else row for _, row in rows()]
    forms = {row.form for row in special if isinstance(row, Special)}
    assert {form for form in forms if not hasattr(ConfigReader, f"read_{form}")} == set()


def single_flags() -> list[tuple[str, Flag, bool]]:
    """Return the keys with one supported flag, the flag, and whether the key has the opposite meaning."""
    found = []
    for path, row in rows():
        flags = flags_of(row)
        spelled = {"mean": flags[0], "stddev": flags[1]} if isinstance(row, Distribution) else {"": ""}
        for tail, spelling in spelled.items():
            name = spelling or (flags[0] if isinstance(row, str | Inverted) or is_alias_of_flag(row) else "")
            flag = find_flag(name)
            if isinstance(flag, Flag) and flag.target is not None and flag.kind not in ("headers", "extra"):
                found.append((f"{path}.{tail}".removesuffix("."), flag, isinstance(row, Inverted)))
    return found


def is_alias_of_flag(row: Row) -> bool:
    return isinstance(row, Alias) and isinstance(row.row, str)


def example(flag: Flag) -> str:
    """Return a value that the flag accepts."""
    for text in ("true", *flag.choices, "2", "1", "0.5", "word"):
        try:
            read_value(flag, flag.name, text)
        except UserError:
            continue
        return text
    raise AssertionError(flag.name)


@pytest.mark.parametrize(
    ("path", "flag", "inverted"), single_flags(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_key_gives_the_value_of_its_flag(path: str, flag: Flag, inverted: bool, tmp_path: Path) -> None:
    text = example(flag)
    *sections, key = path.removesuffix(".").split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(sections)]
    file = tmp_path / "run.yaml"
    file.write_text("\n".join([*lines, f"{'  ' * len(sections)}{key}: {text}"]))
    expected = read_value(flag, "", {"true": "false"}[text] if inverted else text)
    assert read_config(str(file), {}).values == {flag.target: expected}
