"""The indexer: in steps, in a child process while a reader follows, and after a change of the input file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets import trace as trace_module
from penstock.datasets.raw_payload import RawPayload
from penstock.datasets.recording import RecordingOptions
from penstock.records.payloads import MissingBody, PayloadStore, PayloadWriter
from penstock.runs import indexer as indexer_module
from penstock.runs.indexer import Indexer, InputFiles
from penstock.workers.stored_conversations import StoredConversations


def write_file(folder: Path, lines: int, bad: int | None = None) -> Path:
    path = folder / "p.jsonl"
    texts = [json.dumps({"messages": [n]}) if n != bad else "oops" for n in range(lines)]
    path.write_text("\n".join(texts) + "\n")
    return path


def make_indexer(folder: Path, path: Path, **options: object) -> tuple[Indexer, RawPayload]:
    recording = RawPayload(str(path))
    return Indexer(
        PayloadWriter(str(folder)), recording, RecordingOptions("messages"), name=path.name, **options
    ), recording  # type: ignore[arg-type]


def numbers(store: PayloadStore) -> list[int]:
    return [json.loads(store.body(i))["messages"][0] for i in range(len(store))]


def test_indexing_continues_where_it_stopped(tmp_path: Path) -> None:
    indexer, recording = make_indexer(tmp_path, write_file(tmp_path, 50))
    indexer.advance(200)
    assert 0 < recording.scanned < 250
    assert not indexer.done
    store = PayloadStore(str(tmp_path), indexer.files)
    known = store.conversations
    assert numbers(store) == list(range(known))
    indexer.advance(None)
    assert indexer.done
    assert numbers(store) == list(range(50))


def test_large_bodies_are_flushed_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_module, "_FLUSH_BYTES", 100)
    indexer, _ = make_indexer(tmp_path, write_file(tmp_path, 50))
    store = PayloadStore(str(tmp_path), indexer.files)
    seen: list[tuple[int, int]] = []
    indexer.advance(None, lambda scanned, _: seen.append((scanned, store.conversations)))
    steps = [after[0] - before[0] for before, after in zip([(0, 0), *seen], seen, strict=False)]
    assert len(seen) > 5
    assert max(steps) < 200
    assert [known for _, known in seen] == sorted({known for _, known in seen})


def test_trace_that_is_read_before_the_first_request_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "_ROWS_BETWEEN_PROGRESS", 10)
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 50 - n, "payload": {"messages": []}}) + "\n" for n in range(50)))
    trace = trace_module.Trace(str(path))
    indexer = Indexer(PayloadWriter(str(tmp_path)), trace, RecordingOptions("messages"), name=path.name)
    seen: list[int] = []
    indexer.advance(None, lambda scanned, _: seen.append(scanned))
    assert len(seen) > 4
    assert seen == sorted(seen)


def test_only_needed_conversations_are_written_but_all_scanned_lines_are_checked(tmp_path: Path) -> None:
    indexer, _ = make_indexer(tmp_path, write_file(tmp_path, 50, bad=40), max_conversations=5)
    indexer.advance(100_000)
    assert indexer.errors.text() == "p.jsonl:41: not valid JSON (expecting value, column 1)"
    indexer, recording = make_indexer(tmp_path, write_file(tmp_path, 50), max_conversations=5)
    indexer.advance(60)
    assert (indexer.done, recording.scanned < 200) == (False, True)
    indexer.advance(None, only_needed=True)
    assert indexer.done
    assert numbers(PayloadStore(str(tmp_path), indexer.files)) == [0, 1, 2, 3, 4]


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    indexer, _ = make_indexer(tmp_path, write_file(tmp_path, 20, bad=7))
    indexer.advance(None)
    assert numbers(PayloadStore(str(tmp_path), indexer.files)) == list(range(7))


class Control:
    """The run, for a companion."""

    def __init__(self, on_complete: Callable[[], None]) -> None:
        self.data_complete = on_complete

    def add_sample(self, source: str, at_ns: int, values: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize("bad", [None, 2500])
def test_reader_follows_the_index_that_a_child_continues(tmp_path: Path, bad: int | None) -> None:
    indexer, recording = make_indexer(tmp_path, write_file(tmp_path, 5000, bad=bad))
    indexer.advance(300)
    store = PayloadStore(str(tmp_path), indexer.files)
    conversations = StoredConversations(store, "sequential", 0, growing=True)
    input_files = InputFiles(indexer, recording.files)
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
    indexer, recording = make_indexer(tmp_path, write_file(tmp_path, 50_000))
    indexer.advance(300)
    input_files = InputFiles(indexer, recording.files)
    input_files.start(Control(lambda: None))
    child = input_files._child
    assert input_files.finish() is None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    path = write_file(tmp_path, 50)
    indexer, recording = make_indexer(tmp_path, path)
    indexer.advance(None)
    input_files = InputFiles(indexer, recording.files)
    assert not input_files.poll()
    os.truncate(path, 100)
    store = PayloadStore(str(tmp_path), indexer.files)
    assert store.body(0) == b'{"messages": [0]}'
    with pytest.raises(MissingBody):
        store.body(40)
    assert input_files.finish() == "p.jsonl:6: the file was cut short during the run, from 940 to 100 bytes."


def test_bodies_of_many_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File numbers in the index have 16 bits."""
    monkeypatch.setattr(indexer_module, "_MAX_FILES", 3)
    folder = tmp_path / "talks"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.jsonl").write_text(json.dumps({"messages": [n]}))
    indexer, _ = make_indexer(tmp_path, folder)
    indexer.advance(None)
    assert indexer.files == ()
    assert numbers(PayloadStore(str(tmp_path))) == [0, 1, 2, 3, 4]
