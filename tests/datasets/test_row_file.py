"""Files of rows: large ones give the same conversations as small ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.datasets.conversation import Conversation
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.formats import lookup
from penstock.datasets.jsonl import FileErrors
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, ScheduleSettings
from support.prompts import conversations_of, read_whole

ROWS = 200
SORTED: list[dict[str, object]] = [
    {"timestamp": 100 + 5 * n, "input_length": 10 + n, "output_length": 1 + n % 7} for n in range(ROWS)
]
UNSORTED = SORTED[::2] + SORTED[1::2]


ON = ScheduleSettings(on=True)
LARGE = 1000
"""Bytes up to which a file is read whole: 10 rows."""


def open_trace(path: Path, text: str, name: str | None = None) -> Dataset:
    path.write_text(text)
    dataset = (detect(str(path)) if name is None else lookup(name)).read(str(path), InputSettings(seed=1))
    dataset.name = path.name
    return dataset


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def burst(rows: list[dict[str, object]]) -> str:
    lines = [f"{float(str(row['timestamp'])) / 1000},m,{row['input_length']},{row['output_length']},l" for row in rows]
    return "\n".join(["Timestamp,Model,Request tokens,Response tokens,Log Type", *lines])


@pytest.mark.parametrize("write", [jsonl, burst])
@pytest.mark.parametrize("rows", [SORTED, UNSORTED], ids=["sorted", "unsorted"])
def test_conversations_are_in_the_order_of_their_times(
    tmp_path: Path, write: Callable[[list[dict[str, object]]], str], rows: list[dict[str, object]]
) -> None:
    trace = open_trace(tmp_path / "t", write(rows))
    steps: list[tuple[int, int]] = []
    trace.prepare(ReadOptions(ON, progress=lambda done, total: steps.append((done, total)), whole_bytes=LARGE))
    # Only the rows of an unsorted trace are all read before the run, which shows its progress.
    assert (trace.turns, bool(steps)) == (((), False) if rows is SORTED else ([1] * ROWS, True))
    found = conversations_of(trace)
    assert [each.turns[0].timestamp_ms for each in found] == [pytest.approx(5 * n) for n in range(ROWS)]
    shapes = [each.turns[0].prompt for each in found]
    assert [shape and shape.length for shape in shapes] == [10 + n for n in range(ROWS)]
    assert [each.turns[0].output_tokens for each in found] == [1 + n % 7 for n in range(ROWS)]
    assert trace.notes() == []
    part = read_whole(trace, schedule=ScheduleSettings(on=True, start_ms=200, end_ms=300), whole_bytes=LARGE)
    assert [each.turns[0].timestamp_ms for each in part] == [pytest.approx(5 * n) for n in range(21)]
    assert trace.notes() == [f"Left out: {ROWS - 21} rows outside of the requested part of the schedule."]


def test_trace_without_schedule_is_sent_in_the_order_of_the_file(tmp_path: Path) -> None:
    trace = open_trace(tmp_path / "t", jsonl(UNSORTED))
    found = read_whole(trace, whole_bytes=LARGE)
    assert trace.turns == ()
    assert [each.turns[0].timestamp_ms for each in found] == [row["timestamp"] for row in UNSORTED]


@pytest.mark.parametrize("kind", ["mooncake", "bailian"])
@pytest.mark.parametrize("schedule", [None, ON])
def test_sessions_of_a_large_trace_are_those_of_a_small_one(
    tmp_path: Path, kind: str, schedule: ScheduleSettings | None
) -> None:
    rows: list[dict[str, object]] = [
        row | {"session_id": f"s{n % 30}"} if n % 3 else row for n, row in enumerate(SORTED)
    ]
    if kind == "bailian":
        rows = [row | {"chat_id": n, "parent_chat_id": n - 30, "hash_ids": [1]} for n, row in enumerate(SORTED)]
    small = read_whole(open_trace(tmp_path / "t", jsonl(rows)), schedule=schedule)
    assert max(len(each.turns) for each in small) > 2
    trace = open_trace(tmp_path / "t", jsonl(rows))
    assert read_whole(trace, schedule=schedule, whole_bytes=LARGE) == small
    assert trace.turns == [len(each.turns) for each in small]
    assert trace.accumulates == (kind == "mooncake")


SESSION: list[dict[str, object]] = [
    {"timestamp": 100, "session_id": "s"},
    {"timestamp": 500, "session_id": "t"},
    {"timestamp": 900, "session_id": "s"},
    {"session_id": "s", "delay": 50},
    {"timestamp": 600, "session_id": "t"},
    {"timestamp": 1500, "session_id": "t"},
]


def times_of(found: list[Conversation]) -> dict[str, list[float | None]]:
    return {each.id: [turn.timestamp_ms for turn in each.turns] for each in found}


@pytest.mark.parametrize("form", [{"input_length": 5}, {"text_input": "x"}, {"payload": {}}, {"text": "x"}])
def test_part_of_a_schedule_is_cut_from_conversations(tmp_path: Path, form: dict[str, object]) -> None:
    """A row without a timestamp belongs to the time of the row before it."""
    rows = [row | form for row in SESSION]
    trace = open_trace(tmp_path / "t", jsonl(rows))
    found = read_whole(trace, schedule=ScheduleSettings(on=True, end_ms=700))
    assert times_of(found) == {"s": [0], "t": [400, 500]}
    assert trace.notes() == ["Left out: 3 rows outside of the requested part of the schedule."]
    trace = open_trace(tmp_path / "t", jsonl(rows))
    found = read_whole(trace, schedule=ScheduleSettings(on=True, start_ms=550, end_ms=1000))
    assert times_of(found) == {"t": [50], "s": [350, None]}
    assert trace.notes() == ["Left out: 3 rows outside of the requested part of the schedule."]


def test_part_of_a_schedule_is_cut_from_the_turns_of_a_line(tmp_path: Path) -> None:
    turns = [{"text": "a", "timestamp": 100}, {"text": "b", "timestamp": 600}, {"text": "c", "delay": 5}]
    trace = open_trace(tmp_path / "t", json.dumps({"session_id": "s", "turns": turns}))
    found = read_whole(trace, schedule=ScheduleSettings(on=True, start_ms=500))
    assert [turn.texts for turn in found[0].turns] == [("b",), ("c",)]
    assert trace.notes() == ["Left out: 1 row outside of the requested part of the schedule."]


def test_row_out_of_order_that_was_not_seen_before_the_run_is_reported(tmp_path: Path) -> None:
    rows = [{"timestamp": 10_000 + 5 * n, "input_length": 10} for n in range(5000)]
    rows[3004] = rows[3004] | {"timestamp": 24_775}
    trace = open_trace(tmp_path / "t", jsonl(rows))
    assert len(read_whole(trace, schedule=ON, whole_bytes=LARGE)) == 5000
    assert trace.turns == ()
    assert trace.notes() == [
        "t:3005: 1 row from here on is earlier than a row above, by up to 0.240 s, and sent late; sort it by 'timestamp'."
    ]


FAR: dict[str, object] = {"timestamp": 9_300_000_000_000, "input_length": 5}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*UNSORTED, {}], f"t:{ROWS + 1}: it has no prompt"),
        ([*UNSORTED, {"input_length": 0}], f"t:{ROWS + 1}: 'input_length' should be a whole number >= 1"),
        ([*SORTED, {"input_length": 5}], f"t:{ROWS + 1}: it has no 'timestamp', which --fixed-schedule needs"),
        ([*UNSORTED, {"input_length": 5}], f"t:{ROWS + 1}: it has no 'timestamp', which --fixed-schedule needs"),
        ([*SORTED, FAR], f"t:{ROWS + 1}: 'timestamp' should be at most 9,000,000,000,000 ms"),
    ],
)
@pytest.mark.parametrize("whole_bytes", [LARGE, 1 << 20])
def test_error_names_file_line_and_reason(
    tmp_path: Path, rows: list[dict[str, object]], message: str, whole_bytes: int
) -> None:
    trace = open_trace(tmp_path / "t", jsonl(rows), "mooncake_trace")
    with pytest.raises(UserError, match=message):
        read_whole(trace, schedule=ON, whole_bytes=whole_bytes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mooncake_trace", '{"timestamp": 1, "payload": {}}\n{"timestamp": 9300000000000, "payload": {}}'),
        ("single_turn", '{"text": "a", "timestamp": 1}\n{"text": "a", "delay": 9300000000000}'),
        ("multi_turn", '{"turns": [{"text": "a"}]}\n{"turns": [{"text": "a", "timestamp": 9300000000000}]}'),
        ("burst_gpt_trace", "Timestamp,Request tokens,Response tokens\n9300000000,1,1"),
        ("bailian_trace", '\n{"chat_id": 1, "timestamp": 9300000000, "input_length": 1, "output_length": 1}'),
    ],
)
def test_time_that_cannot_be_stored_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UserError, match=r"t:2: .*should be at most 9,000,000,000,000 ms \(285 years\)"):
        read_whole(open_trace(tmp_path / "t", text, name))


def test_time_that_cannot_be_stored_after_slowing_down_is_refused(tmp_path: Path) -> None:
    trace = open_trace(tmp_path / "t", jsonl([{"timestamp": 1e12 * n, "input_length": 5} for n in range(2)]))
    with pytest.raises(UserError, match="more than 285 years"):
        read_whole(trace, schedule=ScheduleSettings(on=True, speedup=0.01))


def test_rest_of_a_sorted_file_is_read_while_conversations_are_taken(tmp_path: Path) -> None:
    trace = open_trace(tmp_path / "t", jsonl(SORTED))
    trace.prepare(ReadOptions(ON, whole_bytes=LARGE))
    found = trace.read(FileErrors("t"))
    next(found)
    assert trace.scanned < LARGE
    assert len(list(found)) == ROWS - 1
    assert trace.scanned == (tmp_path / "t").stat().st_size
