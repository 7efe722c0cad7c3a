"""Reading the spool: one segment, from where the last reading ended, while its worker may still be appending to it."""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple

from penstock import frames
from penstock.gateway import owned_file

__all__ = ["Backlog", "Piece", "Segment", "Waiting"]


class Piece(NamedTuple):
    entries: list[tuple[int, bytes]]
    """Each with the kind of its frame: a segment of another version may hold what is no entry to us."""
    end: int
    """The position after them."""
    last: bool
    """Nothing follows, and nothing will."""
    torn: int
    """Bytes at the end that are no entry: a write cut short, or damage."""


class Segment:
    """Raises FileNotFoundError when it is gone: another process moved it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "rb", buffering=1 << 18)  # noqa: SIM115
        self._orphan = False
        self.position = 0

    def read(self, most: int) -> Piece:
        # Asked before reading: once nobody owns the file it cannot grow, so its end is then the end.
        self._orphan = self._orphan or owned_file.is_orphan(self._file.fileno())
        entries: list[tuple[int, bytes]] = []
        end = self.position
        self._file.seek(end)
        reading = frames.read(self._file)
        while len(entries) < most:
            try:
                kind, data = next(reading)
            except StopIteration as finished:
                return Piece(entries, end, self._orphan, finished.value)
            end += frames.HEAD.size + len(data)
            entries.append((kind, data))
        return Piece(entries, end, last=False, torn=0)

    def remove(self) -> None:
        self.close()
        os.unlink(self.path)

    def set_aside(self) -> str:
        """For somebody to look at: its name does not end like that of a segment any more."""
        aside = self.path + ".damaged"
        self.close()
        os.replace(self.path, aside)
        return aside

    def close(self) -> None:
        self._file.close()


class Waiting(NamedTuple):
    entries: int
    bytes: int


class Backlog:
    """Counts what waits. Every frame's head is read once: 0.3 µs for each entry that ever passes."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}  # path -> entries, position

    def waiting(self, paths: list[str], moved: dict[str, tuple[int, int]]) -> Waiting:
        """`moved` says for each path how many entries, and bytes, are in the ledger."""
        entries = size = 0
        counted = {}
        for path in paths:
            try:
                counted[path] = self._count(path)
            except FileNotFoundError:
                continue
            done, position = moved.get(path, (0, 0))
            entries += max(0, counted[path][0] - done)
            size += max(0, counted[path][1] - position)
        self._counted = counted
        return Waiting(entries, size)

    def _count(self, path: str) -> tuple[int, int]:
        entries, position = self._counted.get(path, (0, 0))
        with open(path, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            while end - position > frames.HEAD.size:
                block = os.pread(file.fileno(), 1 << 20, position)
                at = 0
                while at + frames.HEAD.size <= len(block):
                    _, length, _ = frames.HEAD.unpack_from(block, at)
                    if position + at + frames.HEAD.size + length > end:
                        break
                    at += frames.HEAD.size + length
                    entries += 1
                if at == 0:
                    break
                position += at
        return entries, position
