"""Detection of the format of a file, and lookup of formats by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.datasets.detect_format import detect
from penstock.datasets.formats import FORMATS, PLANNED, lookup
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from support.prompts import read_whole


@pytest.mark.parametrize("name", ["single_turn", "SINGLE_TURN", "single-turn", "Single-Turn", "singleturn"])
def test_format_name_ignores_case_and_dashes(name: str) -> None:
    assert lookup(name).name == "single_turn"


@pytest.mark.parametrize(
    "name",
    [*PLANNED, "speed_bench_qualitative", "Weka-Trace", "basetentrace"],
)
def test_format_that_is_not_built_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError) as caught:
        lookup(name)
    shown = {"Weka-Trace": "weka_trace", "basetentrace": "baseten_trace"}.get(name, name)
    assert str(caught.value).startswith(
        f"The dataset format '{shown}' is not supported yet. This version reads:\n  single_turn"
    )


def test_unknown_format_name_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"There is no dataset format 'alpaca' \(--custom-dataset-type\)\. This version reads:\n"
    ):
        lookup("alpaca")
    with pytest.raises(UserError, match=r"'single-trun' \(--custom-dataset-type\); did you mean single_turn\?\Z"):
        lookup("single-trun")


@pytest.mark.parametrize("line", ['{"text": 5}', '{"texts": "a"}'])
def test_text_of_the_wrong_type_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match="should be a"):
        read_whole(detect(str(path)).read(str(path), InputSettings()))


def test_every_format_of_aiperf_is_built_or_planned() -> None:
    assert {each.name for each in FORMATS} - {"azure_llm_trace", "sharegpt"} | set(PLANNED) == {
        "single_turn",
        "multi_turn",
        "dag_jsonl",
        "random_pool",
        "mooncake_trace",
        "raw_payload",
        "inputs_json",
        "burst_gpt_trace",
        "bailian_trace",
        "baseten_trace",
        "sagemaker_data_capture",
        "tracelab",
        "weka_trace",
    }
    assert not {each.name for each in FORMATS} & set(PLANNED)


@pytest.mark.parametrize(
    "content",
    [
        '{"text": "hello"}',
        '\n\n  \n{"texts": ["a", "b"]}\nrubbish',
        '\ufeff{"text": "hello"}',
        '{"type": "Single-Turn", "whatever": 1}',
        '{"type": "question", "text": "hello"}',
        '{"image": "a.png"}',
    ],
)
def test_single_turn_is_detected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(content, encoding="utf-8")
    assert detect(str(path)).name == "single_turn"


def test_planned_format_named_by_the_first_line_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"type": "weka_trace", "text": "x"}')
    with pytest.raises(UserError, match=r"The dataset format 'weka_trace' is not supported yet\. This version reads:"):
        detect(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.jsonl' is empty; give a file with one JSON object per line."),
        ("[1, 2]", "a.jsonl:1: the line should be an object. This"),
        ("\nhello there", "a.jsonl:2: not valid JSON (expecting value, column 1). This version reads:\n  single_turn"),
        (
            '{"prompt": "x", "id": 3}',
            "is not known: its first line has 'prompt', 'id'. This version reads:\n  single_turn",
        ),
        ('{"text": {"format": 1}}', "is not known: its first line has 'text'. This version reads:\n  single_turn"),
        ("{}", "is not known: its first line has nothing. This"),
        ('{\n "text": "x"\n}', "a.jsonl' is one JSON object over several lines. This version reads:\n  single_turn"),
    ],
)
def test_unknown_content_is_described(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        detect(str(path))
    assert message in str(caught.value)
    assert max(map(len, str(caught.value).replace(str(tmp_path), "").splitlines())) < 130


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory\."):
        detect(str(tmp_path / "none.jsonl"))
