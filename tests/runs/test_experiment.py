"""Which points of an experiment share a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.datasets.load import load
from penstock.runs.experiment import data_key
from penstock.runs.read_settings import read_settings
from penstock.settings.parse import parse
from penstock.tokens.tiktoken_vocabulary import open_builtin

TEXT, TRACE = '{"text": "a"}', '{"input_length": 3, "output_length": 1}'


@pytest.mark.parametrize(
    ("line", "flags", "seed_matters"),
    [
        (TEXT, "", False),
        (TEXT, "--osl 5 --osl-stddev 1", True),
        (TEXT, "--model-selection-strategy random", True),
        (TEXT, "--custom-dataset-type random_pool", True),
        (TRACE, "--custom-dataset-type mooncake_trace", True),
    ],
)
def test_points_share_the_dataset_of_a_file_unless_the_seed_decides_its_prompts(
    tmp_path: Path, line: str, flags: str, seed_matters: bool
) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(line)

    def key(more: str) -> object:
        words = f"--model m --input-file {file} {flags} {more}"
        settings = read_settings(parse(PROFILE, words.split()))
        return data_key(settings, load(settings.input, 1, open_builtin))

    assert key("--random-seed 1 --concurrency 1") == key("--random-seed 1 --concurrency 64")
    assert (key("--random-seed 1") != key("--random-seed 2")) == seed_matters
