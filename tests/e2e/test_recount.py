"""`penstock report --tokenizer`: the tokenizer that is named counts the prompts, too."""

from __future__ import annotations

import json
from pathlib import Path

from support.programs import Program


def words(folder: Path) -> Path:
    """A tokenizer for which a token is a word or a run of other signs."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def lengths(folder: Path) -> tuple[float, str]:
    """The mean length of the prompts, and who is said to have counted them."""
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    return summary["input_sequence_length"]["avg"], summary["tokenizer"]["name"]


def test_another_tokenizer_counts_the_prompts_anew(program: Program) -> None:
    run = program.profile("mock://", "--tokenizer", "builtin", "--isl", 60, "--request-count", 3, texts=None)
    assert lengths(run.folder) == (60, "builtin")
    named = words(program.folder)
    assert program.run("report", run.folder, "--tokenizer", named, command="penstock").status == 0
    mean, name = lengths(run.folder)
    assert name == str(named)
    assert 20 < mean < 60
    assert program.run("report", run.folder, command="penstock").status == 0
    assert lengths(run.folder) == (60, "builtin")


def test_a_log_that_does_not_say_who_made_its_prompts_is_counted_anew(program: Program) -> None:
    run = program.profile("mock://", "--tokenizer", "builtin", "--isl", 60, "--request-count", 3, texts=None)
    header = run.folder / "log" / "run.json"
    fields = json.loads(header.read_text())
    assert fields.pop("prompt_tokenizer") == ["builtin", "builtin"]
    header.write_text(json.dumps(fields))
    assert program.run("report", run.folder, "--tokenizer", words(program.folder), command="penstock").status == 0
    assert lengths(run.folder)[0] < 60
    assert program.run("report", run.folder, command="penstock").status == 0
    assert lengths(run.folder) == (60, "builtin")
