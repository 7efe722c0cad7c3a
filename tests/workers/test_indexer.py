"""The index of a recording: stopped and carried on, followed while it grows, and its end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.datasets.raw_payload import RawPayload
from penstock.datasets.recording import RecordingOptions
from penstock.records.payloads import MissingBody, PayloadStore, PayloadWriter
from penstock.workers import indexer
from penstock.workers.conversation_picker import ConversationPicker
from penstock.workers.indexer import Index, Sources
from penstock.workers.shared_state import SharedState


def file_of(folder: Path, lines: int, bad: int | None = None) -> Path:
    path = folder / "p.jsonl"
    texts = [json.dumps({"messages": [n]}) if n != bad else "oops" for n in range(lines)]
    path.write_text("\n".join(texts) + "\n")
    return path


def index_of(folder: Path, path: Path, **more: object) -> tuple[Index, RawPayload]:
    recording = RawPayload(str(path))
    return Index(PayloadWriter(str(folder)), recording, RecordingOptions("chat"), name=path.name, **more), recording  # type: ignore[arg-type]


def numbers(store: PayloadStore) -> list[int]:
    return [json.loads(store.body(i))["messages"][0] for i in range(len(store))]


def test_it_stops_and_goes_on(tmp_path: Path) -> None:
    index, recording = index_of(tmp_path, file_of(tmp_path, 50))
    index.advance(200)
    assert 0 < recording.scanned < 250
    assert not index.done
    store = PayloadStore(str(tmp_path), index.files)
    known = store.conversations
    assert numbers(store) == list(range(known))
    index.advance(None)
    assert index.done
    assert numbers(store) == list(range(50))


def test_large_bodies_do_not_wait_for_a_thousand_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "_FLUSH_BYTES", 100)
    index, _ = index_of(tmp_path, file_of(tmp_path, 50))
    store = PayloadStore(str(tmp_path), index.files)
    seen: list[tuple[int, int]] = []
    index.advance(None, lambda scanned, _: seen.append((scanned, store.conversations)))
    steps = [after[0] - before[0] for before, after in zip([(0, 0), *seen], seen, strict=False)]
    assert len(seen) > 5
    assert max(steps) < 200
    assert [known for _, known in seen] == sorted({known for _, known in seen})


def test_no_more_is_written_than_the_run_can_need_and_all_of_the_stretch_is_checked(tmp_path: Path) -> None:
    index, _ = index_of(tmp_path, file_of(tmp_path, 50, bad=40), most=5)
    index.advance(100_000)
    assert index.problems.text() == "p.jsonl:41: not valid JSON (expecting value, column 1)"
    index, recording = index_of(tmp_path, file_of(tmp_path, 50), most=5)
    index.advance(60)
    assert (index.done, recording.scanned < 200) == (False, True)
    index.advance(None, only_needed=True)
    assert index.done
    assert numbers(PayloadStore(str(tmp_path), index.files)) == [0, 1, 2, 3, 4]


def test_behind_a_problem_nothing_is_written(tmp_path: Path) -> None:
    index, _ = index_of(tmp_path, file_of(tmp_path, 20, bad=7))
    index.advance(None)
    assert numbers(PayloadStore(str(tmp_path), index.files)) == list(range(7))


@pytest.mark.parametrize("bad", [None, 2500])
def test_a_child_carries_on_and_a_reader_follows(tmp_path: Path, bad: int | None) -> None:
    index, recording = index_of(tmp_path, file_of(tmp_path, 5000, bad=bad))
    index.advance(300)
    board = SharedState(1)
    sources = Sources(index, recording.files)
    sources.start(board)
    store = PayloadStore(str(tmp_path), index.files)
    deck = ConversationPicker(store, "sequential", 0, board)
    sent = 0
    while deck.size is None and not sources.look():
        if (picked := deck.pick(sent)) is not None:
            assert json.loads(store.body(store.turns(picked)[0]))["messages"] == [sent]
            sent += 1
    wrong = sources.finish()
    if bad is None:
        assert (deck.size, wrong) == (5000, None)
    else:
        assert deck.size is None
        assert wrong == "p.jsonl:2501: not valid JSON (expecting value, column 1)"


def test_an_unfinished_child_is_ended_with_the_run(tmp_path: Path) -> None:
    index, recording = index_of(tmp_path, file_of(tmp_path, 50_000))
    index.advance(300)
    sources = Sources(index, recording.files)
    sources.start(SharedState(1))
    child = sources._child
    assert sources.finish() is None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_body_that_is_gone(tmp_path: Path) -> None:
    path = file_of(tmp_path, 50)
    index, recording = index_of(tmp_path, path)
    index.advance(None)
    sources = Sources(index, recording.files)
    assert not sources.look()
    os.truncate(path, 100)
    store = PayloadStore(str(tmp_path), index.files)
    assert store.body(0) == b'{"messages": [0]}'
    with pytest.raises(MissingBody):
        store.body(40)
    assert sources.finish() == "p.jsonl:6: the file was cut short during the run, from 940 to 100 bytes."


def test_many_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index numbers files in 16 bits."""
    monkeypatch.setattr(indexer, "_MOST_FILES", 3)
    folder = tmp_path / "talks"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.jsonl").write_text(json.dumps({"messages": [n]}))
    index, _ = index_of(tmp_path, folder)
    index.advance(None)
    assert index.files == ()
    assert numbers(PayloadStore(str(tmp_path))) == [0, 1, 2, 3, 4]
