"""The points of an experiment: which share a dataset, and which a lost worker leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.datasets.load import load
from penstock.runs import run_experiment as module
from penstock.runs.point_runner import EndedPoint
from penstock.runs.read_settings import read_settings
from penstock.runs.run_experiment import run_experiment
from penstock.runs.stored_data import data_key
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
        dataset = load(settings.input, 1, open_builtin)
        return data_key(settings, synthetic=dataset.synthetic, depends_on_seed=dataset.depends_on_seed)

    assert key("--random-seed 1 --concurrency 1") == key("--random-seed 1 --concurrency 64")
    assert (key("--random-seed 1") != key("--random-seed 2")) == seed_matters


@pytest.mark.parametrize(
    ("lost_in", "sentence"),
    [
        (1, "A worker process was lost, so the points after it were not run."),
        (2, "A worker process was lost."),
        (0, None),
    ],
)
def test_lost_worker_ends_an_experiment_before_its_next_point(
    monkeypatch: pytest.MonkeyPatch, lost_in: int, sentence: str | None
) -> None:
    runner: Any = SimpleNamespace(stopping=False, lost_workers=[], interrupts=0, companion_error=None)
    ran = []

    class PointRunner:
        def __init__(self, *_: object) -> None: ...

        def run(self, point: Any) -> Any:
            ran.append(point.number)
            if point.number == lost_in:
                runner.lost_workers.append(0)
            return EndedPoint(point, None, unsent="A fault of the test.")

        def end_sending(self) -> None: ...

    def points() -> Iterator[Any]:
        for number in (1, 2):
            yield SimpleNamespace(number=number, alone=False, rule=None)

    started = SimpleNamespace(runner=runner, settings=None, tokenizer=None, prepared=SimpleNamespace(expected=[]))
    monkeypatch.setattr(module, "start_run", lambda *_, **__: nullcontext(started))
    monkeypatch.setattr(module, "PointRunner", PointRunner)
    output = SimpleNamespace(folder="run")
    experiment: Any = SimpleNamespace(settings=SimpleNamespace(output=output), largest=[None], points=points)
    folder: Any = SimpleNamespace(began=True)
    done = run_experiment(experiment, folder)
    assert ran == ([1] if lost_in == 1 else [1, 2])
    assert done.error == sentence
