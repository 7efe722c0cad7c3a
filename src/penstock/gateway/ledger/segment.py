"""Reading of spool segments, which their workers may still be appending to."""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple

from penstock import frames
from penstock.gateway.storage import owned_file


class SegmentBatch(NamedTuple):
    """Frames read from a segment by one call of `Segment.read`."""

    frames: list[tuple[int, bytes]]
    """The kind and the data of each frame. Other versions may write frames that are not entries."""
    end: int
    """The position after the frames."""
    last: bool
    """The segment is read to its end and cannot grow any more."""
    incomplete_bytes: int
    """Bytes at the end that are not a valid frame: an interrupted write, or damage."""


class Segment:
    """One segment file. Opening it raises FileNotFoundError if another process has moved and removed it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "rb", buffering=1 << 18)  # noqa: SIM115
        self._orphan = False
        self.position = 0

    def read(self, max_frames: int) -> SegmentBatch:
        # Check the owner before reading: a file without an owner cannot grow, so its end is final.
        self._orphan = self._orphan or owned_file.is_orphan(self._file.fileno())
        batch: list[tuple[int, bytes]] = []
        end = self.position
        self._file.seek(end)
        reader = frames.Reader(self._file)
        for kind, data in reader:
            end += frames.HEAD.size + len(data)
            batch.append((kind, data))
            if len(batch) == max_frames:
                return SegmentBatch(batch, end, last=False, incomplete_bytes=0)
        return SegmentBatch(batch, end, self._orphan, reader.left)

    def remove(self) -> None:
        self.close()
        os.unlink(self.path)

    def mark_damaged(self) -> str:
        """Keep the file for inspection under a name that is not a segment's, and return its new path."""
        damaged_path = self.path + ".damaged"
        self.close()
        os.replace(self.path, damaged_path)
        return damaged_path

    def close(self) -> None:
        self._file.close()


class PendingCount(NamedTuple):
    entries: int
    bytes: int


class PendingCounter:
    """Counts the entries in the spool that are not in the ledger. It reads each entry once."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}  # path -> entries, position

    def count(self, paths: list[str], moved: dict[str, tuple[int, int]]) -> PendingCount:
        """`moved` gives, for each path, the entries and bytes that are in the ledger."""
        entries = size = 0
        counted = {}
        for path in paths:
            try:
                counted[path] = self._count(path)
            except FileNotFoundError:
                continue
            moved_entries, moved_bytes = moved.get(path, (0, 0))
            entries += max(0, counted[path][0] - moved_entries)
            size += max(0, counted[path][1] - moved_bytes)
        self._counted = counted
        return PendingCount(entries, size)

    def _count(self, path: str) -> tuple[int, int]:
        entries, position = self._counted.get(path, (0, 0))
        with open(path, "rb") as file:
            file.seek(position)
            for _, data in frames.Reader(file):
                entries += 1
                position += frames.HEAD.size + len(data)
        return entries, position
