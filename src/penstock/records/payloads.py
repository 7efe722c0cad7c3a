"""The bodies of a run, by number. They lie in files and are read with pread: nothing but small indexes is in memory.

    payloads.bin        bodies, or the parts from which a worker builds them when it knows the replies before
    payloads.idx        48 bytes a body: where it is and what is known of it
    conversations.idx   24 bytes a conversation: its bodies and the place of its name
    sessions.bin        the names

A body may also lie in a file of the user's (a replay): then only the index is ours. A conversation is written when all its
bodies are, so a reader may follow a writer: `conversations` counts what is complete.

What a worker builds while it runs it appends to a store of its own (`payloads-N.…`), without conversations.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from math import isnan, nan
from typing import NamedTuple

import msgspec

from penstock.datasets.conversation import Turn

__all__ = ["Files", "Missing", "Parts", "Payload", "PayloadStore", "PayloadWriter"]

_BODY = struct.Struct("<QIHHiiIIdd")
_CONVERSATION = struct.Struct("<QQII")
_IN_MEMORY = 32 << 20
_OPEN_AT_ONCE = 32

WHOLE, PARTS = 0, 1


class Missing(OSError):
    """A body is not where it should be: somebody changed the file, or a worker was killed before it had written it."""

    def __init__(self, file: int) -> None:
        super().__init__(f"file {file} of the payloads is not what it should be")
        self.file = file


class Parts(msgspec.Struct):
    """From what a worker builds the body of a turn whose history it must know."""

    turn: Turn
    model: str
    system: str | None = None
    """System text of the conversation."""
    context: str | None = None
    """A leading user message of the conversation."""


class Payload(NamedTuple):
    offset: int
    length: int
    file: int
    """0 is payloads.bin; n is the n-th file of the user's."""
    kind: int
    input_tokens: int
    """-1 when nobody counted yet."""
    output_tokens: int
    """The reply length asked for, -1 for none."""
    conversation: int
    turn: int
    timestamp_ms: float
    """When a recording says it was sent; NaN when it says nothing."""
    delay_ms: float
    """How long to wait after the reply before."""

    @property
    def timed(self) -> bool:
        return not isnan(self.timestamp_ms)


def _names(folder: str, worker: int | None) -> tuple[str, str, str, str]:
    mark = "" if worker is None else f"-{worker}"
    files = (f"payloads{mark}.bin", f"payloads{mark}.idx", f"conversations{mark}.idx", f"sessions{mark}.bin")
    bodies, index, conversations, sessions = (os.path.join(folder, name) for name in files)
    return bodies, index, conversations, sessions


class PayloadWriter:
    def __init__(self, folder: str, worker: int | None = None) -> None:
        bodies, index, conversations, sessions = _names(folder, worker)
        self._bodies = open(bodies, "wb", buffering=1 << 20)  # noqa: SIM115
        self._index = open(index, "wb", buffering=1 << 16)  # noqa: SIM115
        self._conversations = open(conversations, "wb", buffering=1 << 16)  # noqa: SIM115
        self._sessions = open(sessions, "wb", buffering=1 << 16)  # noqa: SIM115
        self._encode = msgspec.msgpack.Encoder().encode
        self._offset = 0
        self._session_offset = 0
        self._first = 0
        self._conversation = 0
        self.count = 0

    @property
    def conversations(self) -> int:
        return self._conversation

    def body(
        self,
        body: bytes,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        timestamp_ms: float | None = None,
        delay_ms: float = 0.0,
        conversation: int | None = None,
        turn: int | None = None,
        kind: int = WHOLE,
    ) -> int:
        """Append a body; conversation and turn default to the conversation being written."""
        self._bodies.write(body)
        place = (self._offset, len(body), 0, kind)
        self._offset += len(body)
        self._entry(place, input_tokens, output_tokens, timestamp_ms, delay_ms, conversation, turn)
        return self.count - 1

    def parts(self, parts: Parts) -> int:
        turn = parts.turn
        return self.body(
            self._encode(parts),
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            timestamp_ms=turn.timestamp_ms,
            delay_ms=turn.delay_ms,
            kind=PARTS,
        )

    def elsewhere(
        self, file: int, offset: int, length: int, *, timestamp_ms: float | None = None, delay_ms: float = 0.0
    ) -> int:
        """A body that stays where it is: in the user's file number `file` (from 1)."""
        self._entry((offset, length, file, WHOLE), None, None, timestamp_ms, delay_ms, None, None)
        return self.count - 1

    def _entry(
        self,
        place: tuple[int, int, int, int],
        input_tokens: int | None,
        output_tokens: int | None,
        timestamp_ms: float | None,
        delay_ms: float,
        conversation: int | None,
        turn: int | None,
    ) -> None:
        self._index.write(
            _BODY.pack(
                *place,
                -1 if input_tokens is None else input_tokens,
                -1 if output_tokens is None else output_tokens,
                self._conversation if conversation is None else conversation,
                self.count - self._first if turn is None else turn,
                nan if timestamp_ms is None else timestamp_ms,
                delay_ms,
            )
        )
        self.count += 1

    def end_conversation(self, session: str | None) -> int:
        """The bodies since the last call are one conversation; without a name it is called by its number."""
        name = (session or "").encode()
        self._sessions.write(name)
        self._conversations.write(
            _CONVERSATION.pack(self._first, self._session_offset, self.count - self._first, len(name))
        )
        self._session_offset += len(name)
        self._first = self.count
        self._conversation += 1
        return self._conversation - 1

    def flush(self) -> None:
        """Bodies first, so that what a reader finds in an index is there."""
        for file in (self._bodies, self._sessions, self._index, self._conversations):
            file.flush()

    def close(self) -> None:
        for file in (self._bodies, self._sessions, self._index, self._conversations):
            file.close()


class _Index:
    """Fixed-size entries of a file, kept in memory while they are few."""

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._entry = entry
        self._cached = b""
        self._load()

    def _load(self) -> None:
        size = os.fstat(self._file).st_size
        if size <= _IN_MEMORY:
            self._cached = os.pread(self._file, size, 0)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._entry.size

    def __getitem__(self, number: int) -> tuple[int, ...]:
        at = number * self._entry.size
        if at + self._entry.size <= len(self._cached):
            return self._entry.unpack_from(self._cached, at)
        data = os.pread(self._file, self._entry.size, at)
        if len(data) < self._entry.size:
            raise Missing(0)
        return self._entry.unpack(data)

    def close(self) -> None:
        os.close(self._file)


class Files:
    """Opened when they are first read: a folder may hold more of them than a process may have open."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def read(self, number: int, length: int, offset: int) -> bytes:
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= _OPEN_AT_ONCE:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                file = self._open[number] = os.open(self._paths[number], os.O_RDONLY)
            except OSError:
                raise Missing(number) from None
        return os.pread(file, length, offset)

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()


class PayloadStore:
    def __init__(self, folder: str, files: Sequence[str] = (), worker: int | None = None) -> None:
        """`files` are the user's files in which bodies lie."""
        bodies, index, conversations, sessions = _names(folder, worker)
        self._files = Files((bodies, *files))
        self._sessions = os.open(sessions, os.O_RDONLY)
        self._index = _Index(index, _BODY)
        self._conversations = _Index(conversations, _CONVERSATION)
        self._decode = msgspec.msgpack.Decoder(Parts).decode

    def __len__(self) -> int:
        return len(self._index)

    @property
    def conversations(self) -> int:
        return len(self._conversations)

    def turns(self, conversation: int) -> range:
        """The numbers of a conversation's bodies, in order."""
        first, _, turns, _ = self._conversations[conversation]
        return range(first, first + turns)

    def entry(self, number: int) -> Payload:
        return Payload._make(self._index[number])

    def body(self, number: int) -> bytes:
        return self.read(self.entry(number))

    def read(self, entry: Payload) -> bytes:
        """Raises Missing."""
        body = self._files.read(entry.file, entry.length, entry.offset)
        if len(body) < entry.length:
            raise Missing(entry.file)
        return body

    def parts(self, entry: Payload) -> Parts:
        return self._decode(self.read(entry))

    def session(self, number: int) -> str:
        """The name of the conversation to which a body belongs."""
        return self.session_name(self.entry(number).conversation)

    def session_name(self, conversation: int) -> str:
        _, offset, _, length = self._conversations[conversation]
        if not length:
            return f"session_{conversation:06d}"
        return os.pread(self._sessions, length, offset).decode()

    def close(self) -> None:
        self._files.close()
        os.close(self._sessions)
        self._index.close()
        self._conversations.close()
