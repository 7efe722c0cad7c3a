"""Temporary files that are unlinked as soon as they are open: none stays, even after a kill."""

from __future__ import annotations

import array
import io
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """A file for many spools, in a folder of the caller.

    A child that was forked after it was opened may write to it instead of its parent, and can return its spools: they are
    pickled with the number of the descriptor, which is the same in both."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: list[IO[bytes]] = []
        self.descriptor = self._open().fileno()
        self._size = 0

    def _open(self) -> IO[bytes]:
        file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed by `close`
        self._files.append(file)
        return file

    def another(self) -> Scratch:
        """Open another file in the same folder, which is closed with this one."""
        other = Scratch(self._folder)
        self._files += other._files
        return other

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write at the end, and return the position."""
        position = self._size
        with memoryview(data) as view:
            while self._size < position + len(view):
                self._size += os.pwrite(self.descriptor, view[self._size - position :], self._size)
        return position

    def allocate(self, size: int) -> memoryview:
        """Return memory in a file, whose pages the kernel can evict. It is freed when it is not used any more."""
        if not size:
            return memoryview(bytearray())
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            _reserve(file.fileno(), size)
            return memoryview(mmap.mmap(file.fileno(), size))

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __getstate__(self) -> None:
        """Leave the files with this process. An object that a child returns can only be read."""

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Spool:
    """A sequence of bytes in a scratch file, which is first written and then read."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._extents = array.array("q")
        """Descriptor, position and length of each part of the sequence, one after the other."""
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data):
            self._extents.extend((self._scratch.descriptor, self._scratch.append(data), len(data)))
            self.size += len(data)

    def merge(self, other: Spool) -> None:
        """Append what another spool holds, without copying it."""
        self._extents += other._extents
        self.size += other.size

    def chunks(self, size: int = 1 << 20) -> Iterator[bytearray]:
        """Yield the bytes in parts of `size`; the last one may be shorter."""
        left, filled = self.size, 0
        chunk = bytearray(min(size, left))
        for descriptor, position, length in self._parts():
            done = 0
            while done < length:
                count = min(length - done, len(chunk) - filled)
                _read(descriptor, position + done, memoryview(chunk)[filled : filled + count])
                done += count
                filled += count
                if filled == len(chunk):
                    yield chunk
                    left -= filled
                    chunk, filled = bytearray(min(size, left)), 0

    def mapped(self) -> memoryview:
        """Return a copy of the bytes in one piece, which the caller may change. It is in a file: its pages can be evicted."""
        memory = self._scratch.allocate(self.size)
        at = 0
        for descriptor, position, length in self._parts():
            _read(descriptor, position, memory[at : at + length])
            at += length
        return memory

    def as_array(self, kind: Any) -> NDArray[Any]:
        """Return a copy of the bytes as an array of a type, as `mapped` does."""
        values: NDArray[Any] = np.frombuffer(self.mapped(), dtype=kind)
        return values

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        extents = iter(self._extents)
        return zip(extents, extents, extents, strict=True)

    def __getstate__(self) -> tuple[array.array[int], int]:
        return self._extents, self.size

    def __setstate__(self, state: tuple[array.array[int], int]) -> None:
        self._extents, self.size = state


class SpoolWriter(io.RawIOBase):
    """Lets code that writes to a file write to a spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._spool.write(data)
        return len(data)

    def tell(self) -> int:
        return self._spool.size


def _reserve(descriptor: int, size: int) -> None:
    """Extend a file. Where the system can, reserve the space: a write to memory on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _read(descriptor: int, position: int, memory: memoryview) -> None:
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], position + done)
        if not count:
            raise EOFError(f"a scratch file ends before {position + len(memory)}")
        done += count
