"""Traces with the real command: the mock's prefix cache finds exactly the prefixes that a trace shares."""

from __future__ import annotations

import json
from collections.abc import Callable

from support.programs import MockServer, Program

SHARED = [1, 2, 3]
ROWS = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": SHARED},
    {"timestamp": 1, "input_length": 700, "output_length": 6, "hash_ids": [4, 5, 6]},
    {"timestamp": 2, "input_length": 700, "output_length": 7, "hash_ids": SHARED},
    {"timestamp": 3, "input_length": 900, "output_length": 8, "hash_ids": SHARED[:2]},
]


def test_prefix_cache_of_the_server_sees_the_shared_blocks(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(prefix_cache=10_000, block_size=16)
    path = program.folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    flags = ("--custom-dataset-type", "mooncake_trace", "--isl-block-size", 256, "--tokenizer", "builtin")
    done = program.profile(
        server.url, "--input-file", path, *flags, "--no-fixed-schedule", "--concurrency", 1, texts=None
    )
    assert done.status == 0, done
    assert done.values("input_sequence_length") == [700, 700, 700, 900]
    first, other, repeated, longer = server.logged_requests()
    assert [each["completion_tokens"] for each in (first, other, repeated, longer)] == [5, 6, 7, 8]
    assert first["cached_tokens"] == other["cached_tokens"] == 0
    # The mock estimates tokens, so the lengths of the shared parts are known as shares of the estimate only.
    assert repeated["cached_tokens"] == (repeated["prompt_tokens"] - 1) // 16 * 16
    assert 0.9 < longer["cached_tokens"] / repeated["cached_tokens"] * 700 / 512 < 1.1
    reuse = done.summary["prompt_reuse"]
    assert (reuse["prompts"], reuse["repeated_prompts"], reuse["prompts_with_shared_prefix"]) == (4, 1, 2)
    shared = (repeated["cached_tokens"] + longer["cached_tokens"]) / sum(
        each["prompt_tokens"] for each in server.logged_requests()
    )
    assert 0.5 * shared < reuse["shared_prefix_share"] <= 1.05 * shared
    assert "1 of 4 prompts in the dataset equal an earlier one; 2 of 4 prompts begin like" in " ".join(done.out.split())


def test_analyze_trace_prints_the_theoretical_hit_rate(program: Program) -> None:
    path = program.folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    done = program.run("analyze-trace", path, "--block-size", 256, "--json", command="penstock")
    assert done.status == 0, done
    assert json.loads(done.out)["reuse"]["cached_tokens"] == 700 + 512
    path.write_text('{"text": "no trace"}')
    done = program.run("analyze-trace", path, command="penstock")
    assert (done.status, "has no 'input_length'" in done.err) == (2, True)
    done = program.run("analyze-trace", "none.jsonl", command="penstock")
    assert (done.status, done.err) == (2, "penstock analyze-trace: There is no file none.jsonl.\n")
    path.write_text("")
    done = program.run("analyze-trace", path, command="penstock")
    assert done.err.endswith("trace.jsonl' is empty; give a file with one JSON object per line.\n")


def test_large_trace_is_sent_while_its_prompts_are_written(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=0, itl=0)
    path = program.folder / "trace.jsonl"
    count, padding = 600, "x" * 8000
    rows = [{"timestamp": n, "input_length": 700 + n % 5, "output_length": 1, "padding": padding} for n in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)))
    flags = ("--custom-dataset-type", "mooncake_trace", "--tokenizer", "builtin", "--random-seed", 1)
    done = program.profile(server.url, "--input-file", path, *flags, texts=None)
    assert done.status == 0, done
    assert "written while it is sent" in done.out
    assert sorted(done.values("input_sequence_length")) == sorted(row["input_length"] for row in rows)
    assert len(server.logged_requests()) == count


def write_rows(program: Program, *rows: dict[str, object]) -> object:
    path = program.folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_end_of_the_schedule_cuts_later_turns_of_a_session(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=0, itl=0)
    times = [(0, "s"), (300, "t"), (900, "s"), (1500, "t"), (600, "s")]
    rows = [{"timestamp": at, "text_input": f"At {at}", "output_length": 1, "session_id": name} for at, name in times]
    flags = ("--fixed-schedule", "--fixed-schedule-end-offset", 700, "--tokenizer", "builtin")
    done = program.profile(server.url, "--input-file", write_rows(program, *rows), *flags, texts=None)
    assert done.status == 0, done
    assert [(each["metadata"]["conversation_id"], each["metadata"]["turn_index"]) for each in done.records] == [
        ("s", 0),
        ("t", 0),
        ("s", 1),
    ]
    assert "Left out: 2 rows outside of the requested part of the schedule." in done.err


def test_timestamp_that_cannot_be_stored_is_refused_with_its_line(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    server = mock(ttft=0, itl=0)
    rows = [{"timestamp": at, "input_length": 20, "output_length": 1} for at in (0, 1, 9_300_000_000_000)]
    flags = ("--fixed-schedule", "--tokenizer", "builtin")
    done = program.profile(server.url, "--input-file", write_rows(program, *rows), *flags, texts=None)
    assert done.status == 2, done
    assert "trace.jsonl:3: 'timestamp' should be at most 9,000,000,000,000 ms (285 years)" in done.err
    assert not server.logged_requests()
