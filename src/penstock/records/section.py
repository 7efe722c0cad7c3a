"""Reads the records of a log, or of a section of it."""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import BinaryIO

import msgspec

from penstock import frames
from penstock.records.frame_kinds import KINDS, RECORD, REPORT
from penstock.records.record import Record

Ranges = Mapping[str, tuple[int, int | None]]
"""Where the frames to read begin and end, by worker file; None for the end of the file."""

_MOST_SECTIONS = 16
_NEAR = 4_096
_WINDOW = 1 << 15
_MERGED = 256
"""Records of a worker that are sorted at a time."""
_BATCH_RECORDS = 1_024
_BATCH_STAMPS = 100_000
"""Limits of a batch, which is tokenized at once and held in memory: about 5 MB."""


class Damage(msgspec.Struct):
    """What could not be read."""

    torn_bytes: int = 0
    """Bytes of incomplete frames that killed workers left at the ends of their files."""
    torn_requests: bool = False
    """True if these bytes can contain requests. A torn report is the last frame of its file, so none follow it."""
    skipped_bytes: int = 0
    """Bytes of damaged frames that intact frames follow."""
    skipped_places: int = 0
    """Number of places with such bytes."""

    def add(self, other: Damage) -> None:
        self.torn_bytes += other.torn_bytes
        self.torn_requests |= other.torn_requests
        self.skipped_bytes += other.skipped_bytes
        self.skipped_places += other.skipped_places


class Section:
    """Reads the records of a section: a part of a log whose requests ended before those of the next section, as far as the
    workers' files are in that order."""

    def __init__(self, ranges: Ranges, is_read: Callable[[Record], bool] | None = None) -> None:
        """`is_read` tells which records are read; by default all of them."""
        self.ranges = ranges
        self._is_read = is_read

    def records(self, damage: Damage | None = None, *, merged: bool = True) -> Iterator[Record]:
        """Yield the records. Those of one worker are in the order in which it processed the replies, which is nearly the order
        of their ends; those of several workers are merged by their ends, or follow one another. What cannot be read is added
        to `damage`."""
        decode = msgspec.msgpack.Decoder(Record).decode
        workers = [map(decode, read_frames(path, part, RECORD, damage)) for path, part in self.ranges.items()]
        found = _merged(workers) if merged and len(workers) > 1 else chain.from_iterable(workers)
        return found if self._is_read is None else filter(self._is_read, found)

    def batches(self, damage: Damage | None = None) -> Iterator[list[Record]]:
        """Yield the records as `records` does, in lists of limited size whose records belong to one phase."""
        batch: list[Record] = []
        stamps = 0
        for record in self.records(damage):
            if batch and (len(batch) >= _BATCH_RECORDS or stamps >= _BATCH_STAMPS or record.phase != batch[0].phase):
                yield batch
                batch, stamps = [], 0
            batch.append(record)
            stamps += len(record.stamps)
        if batch:
            yield batch

    def frame_count(self, damage: Damage | None = None) -> int:
        """Count the records without decoding them, also those that are not read."""
        return sum(1 for path, part in self.ranges.items() for _ in read_frames(path, part, RECORD, damage))


def cut(ranges: Ranges, section_bytes: int) -> list[Ranges]:
    """Return the ranges of sections of about `section_bytes`, in the order of time. Those of a small log are one section.

    They depend on the log only, so a report does not depend on the number of cores."""
    sizes = {path: (os.path.getsize(path) if end is None else end) - begin for path, (begin, end) in ranges.items()}
    count = min(sum(sizes.values()) // section_bytes, _MOST_SECTIONS)
    if count < 2:
        return [ranges]
    largest = max(sizes, key=sizes.__getitem__)
    with open(largest, "rb") as file:
        search = _RecordSearch(file, ranges[largest][0], sizes[largest])
        times = sorted(search.end_of_share(number / count) for number in range(1, count))
    sections: list[dict[str, tuple[int, int | None]]] = [{} for _ in range(count)]
    for path, (begin, end) in ranges.items():
        with open(path, "rb") as file:
            search = _RecordSearch(file, begin, sizes[path])
            cuts = [search.position_at(time) for time in times]
        for section, edges in zip(sections, zip([begin, *cuts], [*cuts, end], strict=True), strict=True):
            section[path] = edges
    return [*sections]


def read_frames(
    path: str, part: tuple[int, int | None], wanted_kind: int, damage: Damage | None = None
) -> Iterator[bytes]:
    """Yield the data of the frames of a kind, and add what cannot be read to `damage`."""
    begin, end = part
    damage = Damage() if damage is None else damage
    # Reports are few; records in between need not be read to find them.
    passed_over = bytes([RECORD]) if wanted_kind == REPORT else b""
    with open(path, "rb", buffering=1 << 20) as file:
        file.seek(begin)
        while True:
            reader = frames.Reader(file, end, passed_over)
            for kind, data in reader:
                if kind == wanted_kind:
                    yield data
                elif kind not in KINDS:  # the checksum does not cover the kind
                    damage.skipped_bytes += frames.HEAD.size + len(data)
                    damage.skipped_places += 1
            if not reader.left or not _skip_damage(file, reader.left, end, damage):
                return


def _skip_damage(file: BinaryIO, size: int, end: int | None, damage: Damage) -> bool:
    """Move to the next intact frame in the `size` bytes before `end`. Return False if there is none: they are torn."""
    length = file.seek(0, os.SEEK_END)
    damaged = file.seek((length if end is None else min(end, length)) - size)
    first = file.read(1)
    with mmap.mmap(file.fileno(), damaged + size, access=mmap.ACCESS_READ) as data:
        intact = frames.find(data, damaged + 1, KINDS)
    if intact is None and end is not None and end < length:
        intact = end  # the next section or point begins there
    if intact is None:
        damage.torn_bytes += size
        damage.torn_requests |= first != bytes([REPORT])
        return False
    damage.skipped_bytes += intact - damaged
    damage.skipped_places += 1
    file.seek(intact)
    return True


def _merged(workers: Sequence[Iterator[Record]]) -> Iterator[Record]:
    """Yield the records of several workers in the order of their ends, except for those that are far from their place in the
    file of their worker."""
    chunks: list[tuple[Iterator[Record], list[Record]]] = [(worker, []) for worker in workers]
    get_end = attrgetter("end")
    while True:
        for worker, chunk in chunks:
            if len(chunk) < _MERGED // 2:
                chunk.extend(islice(worker, _MERGED))
                chunk.sort(key=get_end)
        chunks = [(worker, chunk) for worker, chunk in chunks if chunk]
        if not chunks:
            return
        limit = min(chunk[-1].end for _, chunk in chunks)
        batch = []
        for _, chunk in chunks:
            before = bisect_right(chunk, limit, key=get_end)
            batch += chunk[:before]
            del chunk[:before]
        batch.sort(key=get_end)
        yield from batch


class _RecordSearch:
    """Finds records by their ends in the file of a worker, which is nearly in that order."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file = file.fileno()
        self._begin = begin
        self._limit = begin + size
        self._decode = msgspec.msgpack.Decoder(Record).decode

    def _first_from(self, position: int) -> tuple[int, int] | None:
        """Return the position and the end of the first request at or after a position."""
        size = _WINDOW
        while position < self._limit:
            # The file is not mapped: the kernel maps megabytes around each page that is read.
            data = os.pread(self._file, min(size, self._limit - position), position)
            start = frames.find(data, 0, KINDS)
            while start is not None and data[start] != RECORD:
                start = frames.find(data, start + 1, KINDS)
            if start is not None:
                _, length, _ = frames.HEAD.unpack_from(data, start)
                begin = start + frames.HEAD.size
                return position + start, self._decode(data[begin : begin + length]).end
            if position + size >= self._limit:
                return None
            size *= 4
        return None

    def end_of_share(self, share: float) -> int:
        """Return the end of the request after this share of the bytes."""
        found = self._first_from(self._begin + int(share * (self._limit - self._begin)))
        return sys.maxsize if found is None else found[1]

    def position_at(self, time: int) -> int:
        """Return the position of the first request that ended at or after this time."""
        low, high = self._begin, self._limit
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = self._first_from(middle)
            if found is None or found[0] >= high or found[1] >= time:
                high = middle
            else:
                low = found[0]
        found = self._first_from(low)
        while found is not None and found[1] < time:
            found = self._first_from(found[0] + 1)
        return self._limit if found is None else found[0]
