"""The `random_pool` format: requests put together at random from one pool for each file.

A pool is a file with the lines of `single_turn`. A request has one line of each pool, drawn with replacement. The pools of a
folder have the names of their files, which are those of texts that have none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.format import Contents, Format
from penstock.datasets.jsonl import FileErrors, jsonl_files
from penstock.datasets.random_streams import conversation_ids, fresh_seed, stream
from penstock.datasets.sentences import pick
from penstock.datasets.single_turn import SingleTurn
from penstock.settings.schema import InputSettings

_ENTRIES = 100


def _read(path: str, settings: InputSettings) -> Contents:
    is_folder = os.path.isdir(path)
    files = jsonl_files(path) if is_folder else [path]
    names = [os.path.splitext(os.path.basename(file))[0] if is_folder else "" for file in files]
    pools: list[list[Turn]] = []
    notes: list[str] = []
    for file in files:
        pool = SingleTurn(file, settings)
        pool.prepare(ReadOptions(whole_bytes=sys.maxsize))
        pools.append([turn for each in pool.read(FileErrors(file)) for turn in each.turns])
        notes += [pool.note] if pool.note else []
    rng = stream(fresh_seed() if settings.seed is None else settings.seed, "random pool")
    ids = conversation_ids(settings.seed)
    conversations = [
        Conversation(id=next(ids), turns=(_merged([pick(rng, pool) for pool in pools], names),))
        for _ in range(settings.entries or _ENTRIES)
    ]
    return Contents(conversations, " ".join(notes) or None)


def _merged(turns: Sequence[Turn], names: Sequence[str]) -> Turn:
    """Return a turn with the content of all turns. A field that a turn has only once is that of the first turn that has it."""
    extra: dict[str, Any] = {}
    for turn in reversed(turns):
        extra |= turn.extra
    text_names = [name for turn, pool in zip(turns, names, strict=True) for name in _text_names(turn, pool)]
    lengths = (turn.output_tokens for turn in turns if turn.output_tokens is not None)
    return Turn(
        texts=tuple([text for turn in turns for text in turn.texts]),
        text_names=tuple(text_names) if any(text_names) else (),
        images=tuple([image for turn in turns for image in turn.images]),
        audios=tuple([audio for turn in turns for audio in turn.audios]),
        role=turns[0].role,
        output_tokens=next(lengths, None),
        extra=extra,
    )


def _text_names(turn: Turn, pool: str) -> tuple[str, ...]:
    return turn.text_names or (pool,) * len(turn.texts)


FORMAT = Format(
    name="random_pool",
    needs="lines of single_turn from which requests are drawn at random, one of each file of a folder",
    matches=lambda _first: False,  # named by the user, or by the first line
    read=_read,
    draws=True,
    reads_folders=True,
)
