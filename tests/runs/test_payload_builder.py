"""Filling the payload store: in steps, in a child process while a reader follows, and after a change of the input file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.dataset import ReadOptions
from penstock.datasets.payload_trace import PayloadTrace
from penstock.datasets.raw_payload import RawPayload
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.records.payloads import MissingBody, PayloadStore, PayloadWriter
from penstock.runs.input_files import InputFiles
from penstock.runs.payload_builder import PayloadBuilder
from penstock.workers.stored_conversations import StoredConversations
from support.runs import make_settings


def write_file(folder: Path, lines: int, bad: int | None = None) -> Path:
    path = folder / "p.jsonl"
    texts = [json.dumps({"messages": [n]}) if n != bad else "oops" for n in range(lines)]
    path.write_text("\n".join(texts) + "\n")
    return path


def make_builder(folder: Path, path: Path, **options: Any) -> tuple[PayloadBuilder, RawPayload]:
    dataset = RawPayload(str(path))
    dataset.name = path.name
    settings = make_settings()
    chat = endpoint("chat", settings.endpoint)
    return PayloadBuilder(PayloadWriter(str(folder)), settings, chat, dataset, **options), dataset


def numbers(store: PayloadStore) -> list[int]:
    return [json.loads(store.body(i))["messages"][0] for i in range(len(store))]


def test_indexing_continues_where_it_stopped(tmp_path: Path) -> None:
    builder, dataset = make_builder(tmp_path, write_file(tmp_path, 50))
    builder.advance(200)
    assert 0 < dataset.scanned < 250
    assert not builder.done
    store = PayloadStore(str(tmp_path), builder.files)
    known = store.conversations
    assert numbers(store) == list(range(known))
    builder.advance(None)
    assert builder.done
    assert numbers(store) == list(range(50))


def test_large_bodies_are_flushed_by_size(tmp_path: Path) -> None:
    builder, _ = make_builder(tmp_path, write_file(tmp_path, 50), flush_bytes=25)
    store = PayloadStore(str(tmp_path), builder.files)
    seen: list[tuple[int, int]] = []
    builder.advance(None, lambda scanned, _: seen.append((scanned, store.conversations)))
    steps = [after[0] - before[0] for before, after in zip([(0, 0), *seen], seen, strict=False)]
    assert len(seen) > 5
    assert max(steps) < 200
    assert [known for _, known in seen] == sorted({known for _, known in seen})


def test_trace_that_is_read_before_the_first_request_shows_progress(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 5000 - n, "payload": {}}) + "\n" for n in range(5000)))
    seen: list[int] = []
    PayloadTrace(str(path)).prepare(ReadOptions(progress=lambda scanned, _: seen.append(scanned)))
    assert len(seen) > 4
    assert seen == sorted(seen)


def test_only_needed_conversations_are_written_but_all_scanned_lines_are_checked(tmp_path: Path) -> None:
    builder, _ = make_builder(tmp_path, write_file(tmp_path, 50, bad=40), max_conversations=5)
    builder.advance(100_000)
    assert builder.errors.text() == "p.jsonl:41: not valid JSON (expecting value, column 1)"
    builder, dataset = make_builder(tmp_path, write_file(tmp_path, 50), max_conversations=5)
    builder.advance(60)
    assert (builder.done, dataset.scanned < 200) == (False, True)
    builder.advance(None, only_needed=True)
    assert builder.done
    assert numbers(PayloadStore(str(tmp_path), builder.files)) == [0, 1, 2, 3, 4]


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    builder, _ = make_builder(tmp_path, write_file(tmp_path, 20, bad=7))
    builder.advance(None)
    assert numbers(PayloadStore(str(tmp_path), builder.files)) == list(range(7))


class Control:
    """The run, for a companion."""

    def __init__(self, on_complete: Callable[[], None]) -> None:
        self.data_complete = on_complete

    def add_sample(self, source: str, at_ns: int, values: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize("bad", [None, 2500])
def test_reader_follows_the_index_that_a_child_continues(tmp_path: Path, bad: int | None) -> None:
    builder, dataset = make_builder(tmp_path, write_file(tmp_path, 5000, bad=bad))
    builder.advance(300)
    store = PayloadStore(str(tmp_path), builder.files)
    conversations = StoredConversations(store, "sequential", 0, growing=True)
    input_files = InputFiles(builder, dataset.files)
    input_files.start(Control(conversations.complete))
    sent = 0
    while not input_files.poll() and conversations.size is None:
        if (conversation := conversations.pick(sent)) is not None:
            assert json.loads(store.body(store.turns(conversation)[0]))["messages"] == [sent]
            sent += 1
    error = input_files.finish()
    if bad is None:
        assert (conversations.size, error) == (5000, None)
    else:
        assert conversations.size is None
        assert error == "p.jsonl:2501: not valid JSON (expecting value, column 1)"


def test_unfinished_child_is_killed_with_the_run(tmp_path: Path) -> None:
    builder, dataset = make_builder(tmp_path, write_file(tmp_path, 50_000))
    builder.advance(300)
    input_files = InputFiles(builder, dataset.files)
    input_files.start(Control(lambda: None))
    child = input_files._child
    assert input_files.finish() is None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    path = write_file(tmp_path, 50)
    builder, dataset = make_builder(tmp_path, path)
    builder.advance(None)
    input_files = InputFiles(builder, dataset.files)
    assert not input_files.poll()
    os.truncate(path, 100)
    store = PayloadStore(str(tmp_path), builder.files)
    assert store.body(0) == b'{"messages": [0]}'
    with pytest.raises(MissingBody):
        store.body(40)
    assert input_files.finish() == "p.jsonl:6: the file was cut short during the run, from 940 to 100 bytes."


def test_bodies_of_many_files_are_copied(tmp_path: Path) -> None:
    """File numbers in the index have 16 bits."""
    folder = tmp_path / "talks"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.jsonl").write_text(json.dumps({"messages": [n]}))
    builder, _ = make_builder(tmp_path, folder, max_files=3)
    builder.advance(None)
    assert builder.files == ()
    assert numbers(PayloadStore(str(tmp_path))) == [0, 1, 2, 3, 4]
