"""The flag table: names are unique, targets exist, help texts are complete, every AIPerf flag is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from penstock.settings.flags import (
    ENDPOINT_TYPES,
    FLAGS,
    GROUPS,
    SPELLINGS,
    UNSUPPORTED_FLAGS,
    Flag,
    expected_value,
)
from penstock.settings.schema import Settings

AIPERF = [line.split() for line in (Path(__file__).parent / "aiperf_flags.txt").read_text().splitlines()]


def test_list_of_aiperf_flags_is_complete() -> None:
    assert len(AIPERF) == 264
    assert sum(map(len, AIPERF)) == 321


@pytest.mark.parametrize("spellings", AIPERF, ids=lambda spellings: spellings[0])
def test_every_aiperf_flag_is_known_by_all_its_spellings(spellings: list[str]) -> None:
    row = SPELLINGS[spellings[0]]
    assert list(row.spellings) == spellings
    assert not (isinstance(row, Flag) and row.penstock_only)


def test_flags_that_aiperf_lacks_are_marked() -> None:
    aiperf = {spelling for spellings in AIPERF for spelling in spellings}
    assert {flag.name for flag in FLAGS if flag.name not in aiperf} == {
        "--api-key-env",
        "--api-key-file",
        "--assert",
        "--cluster",
        "--conversation-rate",
        "--find-max",
        "--follow-cross-origin-redirects",
        "--export",
        "--insecure",
        "--max-error-rate",
        "--metrics-port",
        "--model-weights",
        "--no-html",
        "--proxy",
        "--quiet",
        "--reader-tokens-per-second",
        "--require-valid",
        "--results-url",
        "--search-level-requests",
        "--search-max",
        "--search-min",
        "--sessions",
        "--slo",
        "--sweep",
        "--telemetry-interval",
        "--stop-on-overload",
        "--trust-env",
        "--until",
        "--warmup-num-users",
        "--warmup-user-centric-rate",
    }
    assert all(flag.penstock_only for flag in FLAGS if flag.name not in aiperf)


def test_no_spelling_is_used_twice() -> None:
    spellings = [spelling for row in (*FLAGS, *UNSUPPORTED_FLAGS) for spelling in row.spellings]
    assert len(spellings) == len(set(spellings)) == len(SPELLINGS)


def _field(path: str) -> Any:
    kind: Any = Settings
    for name in path.split("."):
        assert issubclass(kind, msgspec.Struct)
        kind = get_type_hints(kind)[name]
    return kind


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_rows_are_complete(flag: Flag) -> None:
    ignored = flag.target is not None and flag.target.startswith("ignored.")
    if flag.target is not None and flag.target not in ("config_file", "log_level") and not ignored:
        assert _field(flag.target) is not None
    if flag.target is None:
        assert flag.always_on or len(flag.choices) == 1, "a value without a target must have no effect"
    assert flag.help.endswith(".")
    assert len(flag.help) < (240 if len(flag.choices) < 10 else 320)  # the names of all endpoint types
    assert (flag.kind == "enum") == bool(flag.choices)
    assert flag.metavar or flag.kind in ("bool", "enum")
    assert expected_value(flag)


def test_groups_hints_and_endpoint_types_are_complete() -> None:
    assert sum(len(group.flags) for group in GROUPS) == len(FLAGS)
    assert sum(bool(row.hint) and "Optuna" not in row.hint for row in UNSUPPORTED_FLAGS) == 1
    optuna = {row.name for row in UNSUPPORTED_FLAGS if "Optuna" in row.hint}
    assert {"--search-planner", "--search-space", "--optuna-sampler", "--bo-constraint-mode"} <= optuna
    endpoint = SPELLINGS["--endpoint-type"]
    assert isinstance(endpoint, Flag)
    assert endpoint.choices == ENDPOINT_TYPES
    assert len(endpoint.choices) + len(endpoint.unsupported_choices) == 19


def test_help_of_the_dataset_type_names_every_format() -> None:
    from penstock.cli.help import flag_help
    from penstock.datasets.formats import FORMATS

    flag = SPELLINGS["--custom-dataset-type"]
    assert isinstance(flag, Flag)
    *most, last = [known.name for known in FORMATS]
    assert flag_help(flag).endswith(f": {', '.join(most)} or {last}.")
