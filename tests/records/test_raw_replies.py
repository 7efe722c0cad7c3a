"""The file of replies."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.records.raw_replies import ReplyReader, ReplyWriter
from penstock.wire.exchange import Exchange


def exchange(*reads: bytes) -> Exchange:
    made = Exchange(b"POST / HTTP/1.1\r\nHost: a\r\nX-Key: b\r\n\r\n{}", lambda _: None)
    made.headers = [(b"content-type", b"text/event-stream")]
    made.pieces = list(reads)
    made.times = [1000 + 10 * n for n in range(len(reads))]
    made.counts = list(range(1, len(reads) + 1))
    return made


def test_replies_are_read_back_by_their_position(tmp_path: Path) -> None:
    writer = ReplyWriter(str(tmp_path), 3, ["x-key"], ["secret"])
    positions = [writer.add(exchange(b"data: 1\n", b"\ndata: secr", b"et\n\n"), 2, 1000), writer.add(exchange(), 2, 0)]
    writer.close()
    reader = ReplyReader(str(tmp_path), 3)
    first, second = (reader.read(position) for position in positions)
    reader.close()
    assert first is not None
    assert second is not None
    assert first.headers == [("Host", "a"), ("X-Key", "<redacted>")]
    assert list(first.events()) == [(10, b"data: 1\n\n"), (20, b"data: ******\n\n")]
    assert (second.body, second.times) == (b"", [])


def test_incomplete_or_missing_reply_is_none(tmp_path: Path) -> None:
    writer = ReplyWriter(str(tmp_path), 0, (), ())
    position = writer.add(exchange(b"hello"), 2, 0)
    writer.close()
    path = tmp_path / "replies-0.bin"
    os.truncate(path, path.stat().st_size - 1)
    reader = ReplyReader(str(tmp_path), 0)
    assert reader.read(position) is None
    reader.close()
    assert ReplyReader(str(tmp_path), 1).read(0) is None
