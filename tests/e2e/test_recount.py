"""`penstock report --tokenizer` also counts the prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.programs import Program


def word_tokenizer(folder: Path) -> Path:
    """Write a tokenizer whose tokens are words and runs of punctuation."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def lengths(folder: Path) -> tuple[float, str]:
    """Return the mean prompt length and the name of the tokenizer in the summary."""
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    return summary["input_sequence_length"]["avg"], summary["tokenizer"]["name"]


@pytest.mark.slow
def test_report_with_another_tokenizer_counts_the_prompts_again(program: Program) -> None:
    run = program.profile("mock://", "--tokenizer", "builtin", "--isl", 60, "--request-count", 3, texts=None)
    assert lengths(run.folder) == (60, "builtin")
    named = word_tokenizer(program.folder)
    assert program.run("report", run.folder, "--tokenizer", named, command="penstock").status == 0
    mean, name = lengths(run.folder)
    assert name == str(named)
    assert 20 < mean < 60
    assert program.run("report", run.folder, command="penstock").status == 0
    assert lengths(run.folder) == (60, "builtin")


@pytest.mark.slow
def test_prompts_of_a_log_without_prompt_tokenizer_are_counted_again(program: Program) -> None:
    run = program.profile("mock://", "--tokenizer", "builtin", "--isl", 60, "--request-count", 3, texts=None)
    header = run.folder / "log" / "run.json"
    fields = json.loads(header.read_text())
    assert fields.pop("prompt_tokenizer") == ["builtin", "builtin"]
    header.write_text(json.dumps(fields))
    assert (
        program.run("report", run.folder, "--tokenizer", word_tokenizer(program.folder), command="penstock").status == 0
    )
    assert lengths(run.folder)[0] < 60
    assert program.run("report", run.folder, command="penstock").status == 0
    assert lengths(run.folder) == (60, "builtin")
