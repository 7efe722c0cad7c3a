"""The request bodies of a run, by number. They are in files and read with pread; only small indexes are in memory.

    payloads.bin        bodies, or the parts from which a worker builds a body once it knows the earlier replies
    payloads.idx        56 bytes a body: position, token counts, times and media
    conversations.idx   24 bytes a conversation: its bodies and the position of its name
    sessions.bin        the names of the conversations
    trees.idx           12 bytes a conversation: the position of its tree; only if conversations can start others
    trees.bin           the trees (`penstock.trees`), with their structure and no text

In a replay the index refers to bodies in the user's files instead. A conversation is written after all its bodies, so a
process can read while another writes: `conversations` counts complete ones.

Worker N appends the bodies that it builds to its own store (`payloads-N.…`), without conversations.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from math import isnan, nan
from typing import BinaryIO, NamedTuple

import msgspec

from penstock.datasets.cache_bust import CacheBust
from penstock.datasets.conversation import Turn
from penstock.trees import Tree

_BODY = struct.Struct("<QIHHiiIIddIf")
_CONVERSATION = struct.Struct("<QQII")
_TREE = struct.Struct("<QI")
_TREES_KEPT = 64
_CACHED_INDEX_BYTES = 32 << 20
_MAX_OPEN_FILES = 32

WHOLE, PARTS = 0, 1
_decode_tree = msgspec.msgpack.Decoder(Tree).decode


class MissingBody(OSError):
    """A body cannot be read: the file was changed, or a worker was killed before it had written the body."""

    def __init__(self, file: int) -> None:
        super().__init__(f"a body cannot be read from file {file} of the payloads")
        self.file = file


class BodyParts(msgspec.Struct):
    """The parts from which a worker builds the body of a turn that contains earlier replies."""

    turn: Turn
    model: str
    system: str | None = None
    """System prompt of the conversation."""
    context: str | None = None
    """A leading user message of the conversation."""
    cache_bust: CacheBust | None = None
    """Marks the conversation in each pass over the dataset."""
    alone: bool = False
    """True if earlier turns and replies are not part of the body."""


class Payload(NamedTuple):
    """The index entry of a body."""

    offset: int
    length: int
    file: int
    """0 is payloads.bin; n is the user's n-th file."""
    kind: int
    """WHOLE for a body, PARTS for an encoded `BodyParts`."""
    input_tokens: int
    """-1 if not counted yet."""
    output_tokens: int
    """The reply length asked for; -1 for none."""
    conversation: int
    turn: int
    timestamp_ms: float
    """The recorded send time; NaN if there is none."""
    delay_ms: float
    """Delay after the previous reply."""
    images: int = 0
    """Images in the body."""
    audio_seconds: float = 0.0
    """Length of the audio in the body; 0 if there is none or its length is not known."""

    @property
    def has_timestamp(self) -> bool:
        return not isnan(self.timestamp_ms)


def _paths(folder: str, worker: int | None) -> tuple[str, str, str, str]:
    suffix = "" if worker is None else f"-{worker}"
    files = (f"payloads{suffix}.bin", f"payloads{suffix}.idx", f"conversations{suffix}.idx", f"sessions{suffix}.bin")
    bodies, index, conversations, sessions = (os.path.join(folder, name) for name in files)
    return bodies, index, conversations, sessions


def store_files(folder: str) -> list[str]:
    """Return the names of the files of the store in a folder."""
    trees = [name for name in ("trees.bin", "trees.idx") if os.path.exists(os.path.join(folder, name))]
    return [*map(os.path.basename, _paths("", None)), *trees]


class PayloadWriter:
    def __init__(self, folder: str, worker: int | None = None, *, trees: bool = False) -> None:
        """With `trees`, conversations can start others."""
        bodies, index, conversations, sessions = _paths(folder, worker)
        self.folder = folder
        self._bodies = open(bodies, "wb", buffering=1 << 20)  # noqa: SIM115
        self._index = open(index, "wb", buffering=1 << 16)  # noqa: SIM115
        self._conversations = open(conversations, "wb", buffering=1 << 16)  # noqa: SIM115
        self._sessions = open(sessions, "wb", buffering=1 << 16)  # noqa: SIM115
        self._trees: tuple[BinaryIO, BinaryIO] | None = None
        """The files of the trees and of their positions."""
        if trees:
            tree_paths = [os.path.join(folder, name) for name in ("trees.bin", "trees.idx")]
            self._trees = open(tree_paths[0], "wb", buffering=1 << 16), open(tree_paths[1], "wb", buffering=1 << 16)  # noqa: SIM115
        self._tree_offset = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._offset = 0
        self._session_offset = 0
        self._first_body = 0
        """The first body of the conversation being written."""
        self._conversation = 0
        self.count = 0

    @property
    def conversations(self) -> int:
        return self._conversation

    @property
    def size(self) -> int:
        """The bytes of the bodies written so far."""
        return self._offset

    def add_body(
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
        images: int = 0,
        audio_seconds: float = 0.0,
    ) -> int:
        """Append a body and return its number; conversation and turn default to those being written."""
        self._bodies.write(body)
        location = (self._offset, len(body), 0, kind)
        self._offset += len(body)
        media = (images, audio_seconds)
        self._add_entry(location, input_tokens, output_tokens, timestamp_ms, delay_ms, conversation, turn, media)
        return self.count - 1

    def add_parts(self, parts: BodyParts, *, images: int = 0, audio_seconds: float = 0.0) -> int:
        turn = parts.turn
        return self.add_body(
            self._encode(parts),
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            timestamp_ms=turn.timestamp_ms,
            delay_ms=turn.delay_ms,
            kind=PARTS,
            images=images,
            audio_seconds=audio_seconds,
        )

    def add_reference(
        self, file: int, offset: int, length: int, *, timestamp_ms: float | None = None, delay_ms: float = 0.0
    ) -> int:
        """Refer to a body in the user's file number `file` (from 1), without copying it."""
        self._add_entry((offset, length, file, WHOLE), None, None, timestamp_ms, delay_ms, None, None)
        return self.count - 1

    def _add_entry(
        self,
        location: tuple[int, int, int, int],
        input_tokens: int | None,
        output_tokens: int | None,
        timestamp_ms: float | None,
        delay_ms: float,
        conversation: int | None,
        turn: int | None,
        media: tuple[int, float] = (0, 0.0),
    ) -> None:
        self._index.write(
            _BODY.pack(
                *location,
                -1 if input_tokens is None else input_tokens,
                -1 if output_tokens is None else output_tokens,
                self._conversation if conversation is None else conversation,
                self.count - self._first_body if turn is None else turn,
                nan if timestamp_ms is None else timestamp_ms,
                delay_ms,
                *media,
            )
        )
        self.count += 1

    def end_conversation(self, session: str | None, tree: Tree | None = None) -> int:
        """Make the bodies since the last call one conversation; without a name, readers name it by its number."""
        if self._trees is not None:
            bodies, index = self._trees
            encoded = b"" if tree is None else self._encode(tree)
            bodies.write(encoded)
            index.write(_TREE.pack(self._tree_offset, len(encoded)))
            self._tree_offset += len(encoded)
        name = (session or "").encode()
        self._sessions.write(name)
        self._conversations.write(
            _CONVERSATION.pack(self._first_body, self._session_offset, self.count - self._first_body, len(name))
        )
        self._session_offset += len(name)
        self._first_body = self.count
        self._conversation += 1
        return self._conversation - 1

    def flush(self) -> None:
        """Write the bodies before the indexes that refer to them, for processes that read meanwhile."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        for file in self._files:
            file.close()

    @property
    def _files(self) -> tuple[BinaryIO, ...]:
        return self._bodies, self._sessions, *(self._trees or ()), self._index, self._conversations


class _Index:
    """A file of fixed-size entries, cached in memory if it is small."""

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._entry = entry
        self._cached = b""
        self._load()

    def _load(self) -> None:
        size = os.fstat(self._file).st_size
        if size <= _CACHED_INDEX_BYTES:
            self._cached = os.pread(self._file, size, 0)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._entry.size

    def __getitem__(self, number: int) -> tuple[int, ...]:
        offset = number * self._entry.size
        if offset + self._entry.size <= len(self._cached):
            return self._entry.unpack_from(self._cached, offset)
        data = os.pread(self._file, self._entry.size, offset)
        if len(data) < self._entry.size:
            raise MissingBody(0)
        return self._entry.unpack(data)

    def close(self) -> None:
        os.close(self._file)


class PayloadFiles:
    """Files that are opened when they are read, at most 32 at a time: a replay can have more than a process may open."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def read(self, number: int, length: int, offset: int) -> bytes:
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= _MAX_OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                file = self._open[number] = os.open(self._paths[number], os.O_RDONLY)
            except OSError:
                raise MissingBody(number) from None
        return os.pread(file, length, offset)

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()


class PayloadStore:
    def __init__(self, folder: str, files: Sequence[str] = (), worker: int | None = None) -> None:
        """`files` are the user's files to which the index refers."""
        bodies, index, conversations, sessions = _paths(folder, worker)
        self.folder = folder
        self._files = PayloadFiles((bodies, *files))
        self._sessions = os.open(sessions, os.O_RDONLY)
        self._index = _Index(index, _BODY)
        self._conversations = _Index(conversations, _CONVERSATION)
        self._decode = msgspec.msgpack.Decoder(BodyParts).decode
        self._tree_index: _Index | None = None
        self._tree_file = -1
        self._trees: dict[int, Tree | None] = {}
        """The trees that were read last, by their roots."""
        if worker is None and os.path.exists(os.path.join(folder, "trees.idx")):
            self._tree_index = _Index(os.path.join(folder, "trees.idx"), _TREE)
            self._tree_file = os.open(os.path.join(folder, "trees.bin"), os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def conversations(self) -> int:
        return len(self._conversations)

    def turns(self, conversation: int) -> range:
        """Return the numbers of a conversation's bodies, in order."""
        first, _, turns, _ = self._conversations[conversation]
        return range(first, first + turns)

    @property
    def has_trees(self) -> bool:
        """True if conversations can start others."""
        return self._tree_index is not None

    def tree(self, conversation: int) -> Tree | None:
        """Return the tree of which the conversation is the root; None if it starts no others."""
        if self._tree_index is None:
            return None
        if conversation not in self._trees:
            if len(self._trees) >= _TREES_KEPT:
                del self._trees[next(iter(self._trees))]
            offset, length = self._tree_index[conversation]
            encoded = os.pread(self._tree_file, length, offset)
            self._trees[conversation] = _decode_tree(encoded) if encoded else None
        return self._trees[conversation]

    def last_turn(self, conversation: int, turn: int) -> int:
        """Return the last turn of the conversation to which a turn belongs; in a tree, that is a node."""
        tree = self.tree(conversation)
        return len(self.turns(conversation)) - 1 if tree is None else tree.nodes[tree.node_of(turn)].end - 1

    def entry(self, number: int) -> Payload:
        return Payload._make(self._index[number])

    def body(self, number: int) -> bytes:
        return self.read(self.entry(number))

    def read(self, entry: Payload) -> bytes:
        """Raise MissingBody if the body cannot be read."""
        body = self._files.read(entry.file, entry.length, entry.offset)
        if len(body) < entry.length:
            raise MissingBody(entry.file)
        return body

    def read_parts(self, entry: Payload) -> BodyParts:
        return self._decode(self.read(entry))

    def session(self, number: int) -> str:
        """Return the name of the conversation to which a body belongs."""
        return self.session_name(self.entry(number).conversation)

    def session_name(self, conversation: int) -> str:
        _, offset, _, length = self._conversations[conversation]
        if not length:
            return f"session_{conversation:06d}"
        return os.pread(self._sessions, length, offset).decode()

    def close(self) -> None:
        self._files.close()
        os.close(self._sessions)
        if self._tree_index is not None:
            self._tree_index.close()
            os.close(self._tree_file)
        self._index.close()
        self._conversations.close()
