"""The `dag_jsonl` format: conversations that start other conversations, one per line.

    {"session_id": "main", "turns": [
        {"messages": [{"role": "user", "content": "Plan it."}], "spawns": ["search"]},
        {"messages": [{"role": "user", "content": "Go on."}], "forks": ["a", "b"]}]}
    {"session_id": "search", "turns": [{"messages": [{"role": "user", "content": "Find it."}], "delay": 500}]}

A conversation that no other one names is a root. A root is sent with all conversations that it starts, as one tree. `forks` go
on from the history of their parent, which ends with them unless they are in the background. `spawns` begin with an empty
history, and a later turn of the parent waits for them. The file is read twice: at first for its structure, then for the
messages of one tree after another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.format import Format
from penstock.datasets.jsonl import FileErrors, empty_file, explain, read_lines
from penstock.datasets.schedule_part import check_milliseconds
from penstock.datasets.source_files import source_files
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from penstock.trees import AT_START, Node, Tree

_NAME = "dag_jsonl"
_MAX_NODES = 100_000
"""Conversations of a tree. One that is spawned by several others is sent once for each."""
_ROWS_BETWEEN_PROGRESS = 1000

Content = TypeVar("Content")


class _Fork(msgspec.Struct, forbid_unknown_fields=True):
    child: str
    background: bool = False


class _Spawn(msgspec.Struct, forbid_unknown_fields=True):
    children: list[str]
    join_at: int | None = None


class _Turn(msgspec.Struct, Generic[Content], forbid_unknown_fields=True):
    messages: list[Content]
    model: str | None = None
    max_tokens: int | None = None
    tools: list[Any] | None = None
    extra: dict[str, Any] | None = None
    delay: float = 0.0
    forks: list[str | _Fork] = []
    spawns: list[str | _Spawn] = []


class _Line(msgspec.Struct, Generic[Content], forbid_unknown_fields=True):
    session_id: str
    turns: list[_Turn[Content]]
    pre_session_spawns: list[str] = []
    type: Any = None
    """Names the format, as in other formats."""


class _Role(msgspec.Struct):
    """A message, of which only the role is read."""

    role: str


_decode_structure = msgspec.json.Decoder(_Line[_Role]).decode
_decode = msgspec.json.Decoder(_Line[dict[str, Any]]).decode


class _Link(NamedTuple):
    """A conversation starts another one."""

    turn: int
    """The turn after which it starts; AT_START for one that starts before the first turn."""
    child: str
    forked: bool = False
    background: bool = False
    join: int | None = None
    """The turn that waits for the child."""


class _Row(NamedTuple):
    number: int
    """Line number."""
    offset: int
    turns: int
    links: tuple[_Link, ...]
    has_system: bool
    """True if its first turn has a system message."""


class Dag(Dataset):
    """The trees of a file."""

    accumulates = True
    has_trees = True

    def __init__(self, path: str, settings: InputSettings) -> None:
        del settings
        self.files = source_files([path])
        self._path = path
        self._size = self.files[0].identity.size
        self._rows: dict[str, _Row] = {}
        self._roots: list[str] = []

    def prepare(self, options: ReadOptions) -> None:
        if options.schedule is not None:
            raise UserError(f"{os.path.basename(self._path)} has no recorded times; leave out --fixed-schedule.")
        errors = FileErrors(self._path)
        self.reads_on = self._size > options.whole_bytes
        rows = self._rows = {}
        for line, (number, offset, text) in enumerate(read_lines(self._path, errors)):
            try:
                name, row = _structure(text, number, offset)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                errors.add(number, explain(error, text))
                continue
            except ValueError as error:
                errors.add(number, str(error))
                continue
            if name in rows:
                errors.add(number, f"the session_id '{name}' is already that of line {rows[name].number}")
            rows.setdefault(name, row)
            if options.progress is not None and line % _ROWS_BETWEEN_PROGRESS == 0:
                options.progress(offset, self._size)
        errors.raise_any()
        if not rows:
            raise empty_file(self._path)
        _check_links(rows, errors)
        errors.raise_any()
        started = {link.child for row in rows.values() for link in row.links}
        self._roots = [name for name in rows if name not in started]
        self.turns = [sum(self._rows[name].turns for name, _, _ in self._nodes(root, errors)) for root in self._roots]
        errors.raise_any()
        if options.progress is not None:
            options.progress(self._size, self._size)

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        self.scanned = 0
        with open(self._path, "rb") as file:
            for root in self._roots:
                try:
                    yield self._read_tree(file, root, errors)
                except (msgspec.DecodeError, UnicodeError, ValueError) as error:
                    errors.add(self._rows[root].number, f"the tree of '{root}' cannot be read again: {error}")

    def _read_tree(self, file: BinaryIO, root: str, errors: FileErrors) -> Conversation:
        nodes: list[Node] = []
        turns: list[Turn] = []
        for name, parent, link in self._nodes(root, errors):
            row = self._rows[name]
            node = Node(name, len(turns), row.turns)
            if link is not None:
                node = _child(node, nodes[parent], parent, link)
            nodes.append(node)
            file.seek(row.offset)
            line = file.readline()
            self.scanned += len(line)
            turns += [_turn(turn) for turn in _decode(line).turns]
        tree = Tree(tuple(nodes)) if len(nodes) > 1 else None
        return Conversation(id=root, turns=tuple(turns), accumulate=True, tree=tree)

    def _nodes(self, root: str, errors: FileErrors) -> Iterator[tuple[str, int, _Link | None]]:
        """Yield the name of each conversation of a tree, the node that starts it, and how. Parents come before children."""
        waiting: list[tuple[str, int, _Link | None]] = [(root, -1, None)]
        for number, found in enumerate(waiting):  # the list grows meanwhile
            if len(waiting) > _MAX_NODES:
                errors.add(self._rows[root].number, f"the tree of '{root}' has more than {_MAX_NODES:,} conversations")
                return
            yield found
            waiting += [(link.child, number, link) for link in self._rows[found[0]].links]


def _structure(text: bytes, number: int, offset: int) -> tuple[str, _Row]:
    """Return the name of the conversation of a line, and what it starts. Raise ValueError or an error of msgspec."""
    line = _decode_structure(text)
    if not line.session_id:
        raise ValueError("'session_id' is empty")
    if not line.turns:
        raise ValueError("'turns' is empty")
    links = [_Link(AT_START, child, background=True) for child in line.pre_session_spawns]
    for index, turn in enumerate(line.turns):
        try:
            _check_turn(turn, is_first=index == 0)
            links += _links(turn, index, len(line.turns))
        except ValueError as error:
            raise ValueError(f"turn {index + 1}: {error}") from None
    has_system = any(message.role == "system" for message in line.turns[0].messages)
    return line.session_id, _Row(number, offset, len(line.turns), tuple(links), has_system)


def _check_turn(turn: _Turn[_Role], *, is_first: bool) -> None:
    if not turn.messages:
        raise ValueError("'messages' is empty")
    if not is_first and any(message.role == "system" for message in turn.messages):
        raise ValueError("only the first turn of a conversation may have a system message")
    if turn.max_tokens is not None and turn.max_tokens < 1:
        raise ValueError("'max_tokens' should be 1 or more")
    check_milliseconds(delay=turn.delay)


def _links(turn: _Turn[_Role], index: int, turns: int) -> Iterator[_Link]:
    for fork in turn.forks:
        each = _Fork(fork) if isinstance(fork, str) else fork
        if not each.background and index + 1 < turns:
            raise ValueError(
                f"the fork '{each.child}' ends its parent, so it belongs to the last turn; a fork with \"background\": true "
                "may stand on any turn"
            )
        yield _Link(index, each.child, forked=True, background=each.background)
    for spawn in turn.spawns:
        if isinstance(spawn, str):
            yield _Link(index, spawn, join=index + 1 if index + 1 < turns else None)
            continue
        if not spawn.children:
            raise ValueError("'children' of a spawn is empty")
        join = index + 1 if spawn.join_at is None and index + 1 < turns else spawn.join_at
        if spawn.join_at is not None and not index < spawn.join_at < turns:
            raise ValueError(
                f"'join_at' is {spawn.join_at}, and should be the index of a later turn: {index + 1} to {turns - 1}"
                if index + 1 < turns
                else f"'join_at' is {spawn.join_at}, but no turn follows"
            )
        for child in spawn.children:
            yield _Link(index, child, join=join)


def _check_links(rows: dict[str, _Row], errors: FileErrors) -> None:
    """Add the errors that concern several lines."""
    forked: dict[str, str] = {}
    early = {link.child for row in rows.values() for link in row.links if link.turn == AT_START}
    for name, row in rows.items():
        for link in row.links:
            if link.child not in rows:
                errors.add(row.number, f"there is no session '{link.child}'")
            elif link.forked and link.child in forked:
                errors.add(
                    row.number,
                    f"'{link.child}' is forked by '{forked[link.child]}' already, and a fork has one parent",
                )
            elif link.forked and link.child in early:
                errors.add(row.number, f"'{link.child}' starts before a session, so it cannot be forked, too")
            elif link.forked and rows[link.child].has_system:
                errors.add(rows[link.child].number, "a forked conversation has the system message of its parent")
            if link.forked:
                forked.setdefault(link.child, name)
    if not errors.count and (cycle := _cycle(rows)):
        errors.add(rows[cycle[0]].number, f"the sessions start one another in a circle: {' > '.join(cycle)}")


def _cycle(rows: dict[str, _Row]) -> list[str]:
    """Return the names along a cycle, with the first one at its end, too; nothing if there is none."""
    done: set[str] = set()
    for start, row in rows.items():
        if start in done:
            continue
        path = [start]
        on_path = {start}
        open_links = [iter(row.links)]
        while path:
            link = next(open_links[-1], None)
            if link is None:
                on_path.discard(path[-1])
                done.add(path.pop())
                open_links.pop()
            elif link.child in on_path:
                return [*path[path.index(link.child) :], link.child]
            elif link.child not in done:
                path.append(link.child)
                on_path.add(link.child)
                open_links.append(iter(rows[link.child].links))
    return []


def _child(node: Node, parent: Node, number: int, link: _Link) -> Node:
    """Return the node of a child, with the turn and node numbers of its tree."""
    at_start = link.turn == AT_START
    return msgspec.structs.replace(
        node,
        parent=-1 if at_start else number,
        depth=parent.depth + 1,
        forked=link.forked,
        replaces=link.forked and not link.background,
        after=parent.after if at_start else parent.first + link.turn,
        joined_at=None if link.join is None else parent.first + link.join,
    )


def _turn(turn: _Turn[dict[str, Any]]) -> Turn:
    extra = dict(turn.extra or {})
    if turn.tools is not None:
        extra["tools"] = turn.tools
    if turn.model is not None:
        extra["model"] = turn.model
    return Turn(messages=tuple(turn.messages), output_tokens=turn.max_tokens, delay_ms=turn.delay, extra=extra)


def _matches(first: dict[str, Any]) -> bool:
    turns = first.get("turns")
    if not isinstance(turns, list) or not turns:
        return False
    return all(isinstance(turn, dict) and "messages" in turn and "text" not in turn for turn in turns)


FORMAT = Format(
    name=_NAME,
    needs="one JSON object per line, with a 'session_id' and a list 'turns' of objects with 'messages', 'forks' and 'spawns'",
    matches=_matches,
    read=Dag,
)
