"""Traces that are too large to keep give the same conversations as small ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.datasets import large_trace, trace_rows
from penstock.datasets.conversation import Conversation
from penstock.datasets.detect_format import detect
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.large_trace import LargeTrace
from penstock.datasets.mooncake_rows import read_rows
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, ScheduleSettings

ROWS = 200
SORTED: list[dict[str, object]] = [
    {"timestamp": 100 + 5 * n, "input_length": 10 + n, "output_length": 1 + n % 7} for n in range(ROWS)
]
UNSORTED = SORTED[::2] + SORTED[1::2]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files of 10 rows large."""
    monkeypatch.setattr(trace_rows, "LARGE", 1000)
    monkeypatch.setattr(large_trace, "CHECKED", 500)


def open_trace(path: Path, text: str) -> LargeTrace:
    path.write_text(text)
    contents = detect(str(path)).read(str(path), InputSettings(seed=1))
    assert contents.large_trace is not None
    return contents.large_trace


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def burst(rows: list[dict[str, object]]) -> str:
    lines = [f"{float(str(row['timestamp'])) / 1000},m,{row['input_length']},{row['output_length']},l" for row in rows]
    return "\n".join(["Timestamp,Model,Request tokens,Response tokens,Log Type", *lines])


def read(trace: LargeTrace, schedule: ScheduleSettings | None = None) -> list[Conversation]:
    errors = FileErrors("t")
    found = list(trace.conversations(errors, schedule))
    errors.raise_any()
    return found


def prepare_and_read(trace: LargeTrace) -> None:
    trace.prepare(scheduled=True)
    read(trace, ScheduleSettings(on=True))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("write", [jsonl, burst])
@pytest.mark.parametrize("rows", [SORTED, UNSORTED], ids=["sorted", "unsorted"])
def test_conversations_are_in_the_order_of_their_times(
    tmp_path: Path, write: Callable[[list[dict[str, object]]], str], rows: list[dict[str, object]]
) -> None:
    trace = open_trace(tmp_path / "t", write(rows))
    steps: list[tuple[int, int]] = []
    trace.prepare(scheduled=True, progress=lambda done, total: steps.append((done, total)))
    # Only the rows of an unsorted trace are all read before the run, which shows its progress.
    assert (trace.turns, bool(steps)) == (([], False) if rows is SORTED else ([1] * ROWS, True))
    found = read(trace, ScheduleSettings(on=True))
    assert [each.turns[0].timestamp_ms for each in found] == [pytest.approx(5 * n) for n in range(ROWS)]
    shapes = [each.turns[0].prompt for each in found]
    assert [shape and shape.length for shape in shapes] == [10 + n for n in range(ROWS)]
    assert [each.turns[0].output_tokens for each in found] == [1 + n % 7 for n in range(ROWS)]
    part = read(trace, ScheduleSettings(on=True, start_ms=200, end_ms=300))
    assert [each.turns[0].timestamp_ms for each in part] == [pytest.approx(5 * n) for n in range(21)]


@pytest.mark.usefixtures("large")
def test_trace_without_schedule_is_sent_in_the_order_of_the_file(tmp_path: Path) -> None:
    trace = open_trace(tmp_path / "t", jsonl(UNSORTED))
    trace.prepare(scheduled=False)
    assert trace.turns == []
    assert [each.turns[0].timestamp_ms for each in read(trace)] == [row["timestamp"] for row in UNSORTED]


@pytest.mark.parametrize("kind", ["mooncake", "bailian"])
def test_sessions_of_a_large_trace_are_those_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rows: list[dict[str, object]] = [
        row | {"session_id": f"s{n % 30}"} if n % 3 else row for n, row in enumerate(SORTED)
    ]
    if kind == "bailian":
        rows = [row | {"chat_id": n, "parent_chat_id": n - 30, "hash_ids": [1]} for n, row in enumerate(SORTED)]
    path = tmp_path / "t"
    path.write_text(jsonl(rows))
    small = detect(str(path)).read(str(path), InputSettings(seed=1)).conversations
    assert max(len(each.turns) for each in small) > 2
    monkeypatch.setattr(trace_rows, "LARGE", 1000)
    trace = open_trace(path, jsonl(rows))
    trace.prepare(scheduled=False)
    assert read(trace) == small
    assert trace.turns == [len(each.turns) for each in small]
    assert trace.accumulates == (kind == "mooncake")


@pytest.mark.usefixtures("large")
def test_row_out_of_order_that_was_not_seen_before_the_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_trace, "_SAMPLES", 2)
    rows = [*SORTED]
    rows[150] = rows[150] | {"timestamp": 600}
    trace = open_trace(tmp_path / "t", jsonl(rows))
    trace.prepare(scheduled=True)
    assert len(read(trace, ScheduleSettings(on=True))) == ROWS
    assert trace.notes() == [
        "t:151: 1 row from here on is earlier than a row above, by up to 0.245 s, and sent late; sort it by 'timestamp'."
    ]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{}, *UNSORTED], "t:1: it has no prompt"),
        ([*UNSORTED, {"input_length": 0}], f"t:{ROWS + 1}: 'input_length' should be a whole number >= 1"),
        ([*SORTED, {"input_length": 5}], f"t:{ROWS + 1}: it has no 'timestamp', which --fixed-schedule needs"),
        ([*UNSORTED, {"input_length": 5}], "this dataset has conversations without a 'timestamp'"),
    ],
)
def test_error_names_file_line_and_reason(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    path = tmp_path / "t"
    path.write_text(jsonl(rows))
    trace = read_rows(str(path), InputSettings(seed=1)).large_trace
    assert trace is not None
    with pytest.raises(UserError, match=message):
        prepare_and_read(trace)
