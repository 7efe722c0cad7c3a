"""Changes of a trace before its prompts are written: speed, lengths, and the number of prefix trees.

The shared part of a prompt consists of its leading blocks that other prompts have, too; the unique part is the rest. Copies of
a block get ids that depend only on the block, its position and the tree, so that prompts still share them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.random_streams import stream
from penstock.plural import counted
from penstock.settings.schema import SynthesisSettings


def synthesize(
    conversations: Sequence[Conversation], settings: SynthesisSettings, block_size: int, seed: int
) -> tuple[list[Conversation], str | None]:
    """Return the changed conversations, and a sentence about those that are left out."""
    changes = _Changes(conversations, settings, block_size)
    rng = stream(seed, "prefix roots")
    changed: list[Conversation] = []
    for conversation in conversations:
        tree = int(rng.random() * settings.roots)
        turns = [changes.turn(turn, tree) for turn in conversation.turns]
        kept = tuple([turn for turn in turns if not _is_too_long(turn, settings)])
        if kept:
            changed.append(msgspec.structs.replace(conversation, turns=kept))
    dropped = sum(len(each.turns) for each in conversations) - sum(len(each.turns) for each in changed)
    return changed, f"Left out: {counted(dropped, 'request')} longer than --synthesis-max-isl." if dropped else None


def _is_too_long(turn: Turn, settings: SynthesisSettings) -> bool:
    return settings.max_input is not None and turn.prompt is not None and turn.prompt.length > settings.max_input


class _Changes:
    def __init__(self, conversations: Sequence[Conversation], settings: SynthesisSettings, block_size: int) -> None:
        self._settings = settings
        self._block_size = block_size
        self._users = Counter(
            block
            for conversation in conversations
            for turn in conversation.turns
            if turn.prompt is not None
            for block in set(turn.prompt.hash_ids)
        )
        self._copies = math.ceil(settings.prefix_length) + 1
        """More than the copies of any block."""

    def turn(self, turn: Turn, tree: int) -> Turn:
        settings = self._settings
        output = turn.output_tokens
        if output is not None:
            output = max(1, round(output * settings.output_length))
            output = output if settings.max_output is None else min(output, settings.max_output)
        time = turn.timestamp_ms
        return msgspec.structs.replace(
            turn,
            prompt=None if turn.prompt is None else self._prompt(turn.prompt, tree),
            output_tokens=output,
            timestamp_ms=None if time is None else time / settings.speedup,
            delay_ms=turn.delay_ms / settings.speedup,
        )

    def _prompt(self, shape: PromptShape, tree: int) -> PromptShape:
        settings = self._settings
        shared = list(takewhile(lambda block: self._users[block] > 1, shape.hash_ids))
        if settings.prefix_length == settings.prompt_length == 1:
            return PromptShape(shape.length, tuple([self._id(block, tree, 0) for block in shape.hash_ids]))
        ids: list[int] = []
        for position, block in enumerate(shared):
            end = math.floor((position + 1) * settings.prefix_length)
            ids += [self._id(block, tree, n) for n in range(end - math.floor(position * settings.prefix_length))]
        shared_length = min(len(shared) * self._block_size, shape.length)
        missing = len(shared) * self._block_size - shared_length  # the last block may not be full
        unique = round((shape.length - shared_length) * settings.prompt_length)
        length = max(len(ids) * self._block_size - (missing if ids else 0), 0) + unique
        return PromptShape(max(1, length), tuple(ids))

    def _id(self, block: int, tree: int, copy: int) -> int:
        return (block * self._settings.roots + tree) * self._copies + copy
