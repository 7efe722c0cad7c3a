"""The formats of traces other than mooncake_trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.datasets.conversation import Conversation, PromptShape
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.formats import lookup
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from support.prompts import conversations_of

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def chat(chat_id: int, parent: int = -1, hash_ids: str = "[1]") -> str:
    return (
        f'{{"chat_id": {chat_id}, "parent_chat_id": {parent}, "timestamp": {chat_id}.5, "input_length": 10, '
        f'"output_length": 3, "type": "text", "turn": 1, "hash_ids": {hash_ids}}}\n'
    )


def read(tmp_path: Path, text: str, name: str | None = None, **fields: int) -> Dataset:
    path = tmp_path / "t.data"
    path.write_text(text)
    format_ = detect(str(path)) if name is None else lookup(name)
    dataset = format_.read(str(path), InputSettings(seed=1, **fields))  # type: ignore[arg-type]
    dataset.prepare(ReadOptions())
    return dataset


def shape(conversations: list[Conversation]) -> list[tuple[float | None, PromptShape | None, int | None]]:
    return [(turn.timestamp_ms, turn.prompt, turn.output_tokens) for each in conversations for turn in each.turns]


def test_burst_gpt_has_seconds_and_leaves_out_failed_requests(tmp_path: Path) -> None:
    found = read(
        tmp_path, BURST + "5,ChatGPT,472,18,490,API log\n\n45.5,GPT-4,9,0,9,API log\n46,GPT-4,9.0,2,11,API log\n"
    )
    assert shape(conversations_of(found)) == [(5000, PromptShape(472), 18), (46000, PromptShape(9), 2)]
    assert found.notes() == ["Left out: 1 row without input or output tokens, which stand for failed requests."]


def test_header_of_a_csv_file_may_be_quoted(tmp_path: Path) -> None:
    header = ",".join(f'"{name}"' for name in BURST.strip().split(","))
    found = read(tmp_path, f'{header}\n"5","ChatGPT","472","18","490","API log"\n')
    assert shape(conversations_of(found)) == [(5000, PromptShape(472), 18)]


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_azure_trace_has_dates(tmp_path: Path, zone: str) -> None:
    text = f"{AZURE}2023-11-16 18:17:03.9799600{zone},4808,10\r\n2023-11-16 18:17:04.0319600{zone},110,27\r\n"
    (first, *_), (second, *_) = shape(conversations_of(read(tmp_path, text)))
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(52)


def test_chains_of_bailian_requests_are_conversations(tmp_path: Path) -> None:
    text = chat(1) + chat(2) + chat(3, parent=1) + chat(4, parent=1) + chat(5, parent=3) + chat(6, parent=99)
    found = read(tmp_path, text)
    assert {each.id: [turn.timestamp_ms for turn in each.turns] for each in conversations_of(found)} == {
        "chat_1": [1500, 3500, 5500],
        "chat_2": [2500],
        "chat_4": [4500],
        "chat_6": [6500],
    }
    assert not any(each.accumulate for each in conversations_of(found))
    assert (found.block_size, read(tmp_path, text, block_size=8).block_size) == (16, 8)


def test_bailian_request_without_a_parent_has_seconds(tmp_path: Path) -> None:
    found = read(tmp_path, chat(1).replace('"parent_chat_id": -1, ', ""))
    assert (shape(conversations_of(found)), found.block_size) == ([(1500, PromptShape(10, (1,)), 3)], 16)


def test_first_row_of_a_mooncake_trace_may_be_broken(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, 'oops\n{"input_length": 30}\n{"input_length": 0}\n', "mooncake_trace")
    assert str(caught.value).splitlines()[1:] == [
        "  t.data:1: not valid JSON (expecting value, column 1)",
        "  t.data:3: 'input_length' should be a whole number >= 1",
    ]


@pytest.mark.parametrize(("time", "timed"), [("1.5", True), ("null", False)])
def test_null_is_no_timestamp(tmp_path: Path, time: str, timed: bool) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"timestamp": {time}, "input_length": 30}}\n')
    has_times = lookup("mooncake_trace").has_times
    assert has_times is not None
    assert has_times(str(path)) is timed


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "burst_gpt_trace",
            "a,b\n1,2\n",
            "t.data:1: the header has no column 'Timestamp'; the format needs Timestamp, ",
        ),
        ("burst_gpt_trace", BURST + "x,m,1,1,2,l\n", "t.data:2: 'Timestamp' should be a time, not 'x'"),
        ("burst_gpt_trace", BURST + "nan,m,1,1,2,l\n", "t.data:2: 'Timestamp' should be a time, not 'nan'"),
        ("burst_gpt_trace", BURST + "1,m,1.5,1,2,l\n", "t.data:2: 'Request tokens' should be a whole number of tokens"),
        ("burst_gpt_trace", BURST + "1,m\n", "t.data:2: it has 2 values, but the header has 6"),
        ("burst_gpt_trace", BURST, "has no requests; give a trace with rows after its header."),
        ("azure_llm_trace", AZURE + "yesterday,1,1\n", "t.data:2: 'TIMESTAMP' should be a time, not 'yesterday'"),
        ("bailian_trace", chat(1) + '{"chat_id": 2}', "t.data:2: Object missing required field 'timestamp'"),
        ("bailian_trace", chat(1, hash_ids="[1, 2]"), "t.data:1: 'hash_ids' has 2 blocks, but an 'input_length' of 10"),
    ],
)
def test_error_names_file_line_and_reason(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text, name)
    assert message in str(caught.value)
