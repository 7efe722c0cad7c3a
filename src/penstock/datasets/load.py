"""The dataset of a run: from a file, or made up."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.detect import detect
from penstock.datasets.draws import fresh_seed, length, stream
from penstock.datasets.recording import Recording
from penstock.datasets.registry import lookup
from penstock.datasets.synthetic import Progress, synthesize
from penstock.errors import UserError
from penstock.settings.model import InputSettings
from penstock.tokens.tokenizer import Tokenizer

__all__ = ["Dataset", "load"]


class Dataset(NamedTuple):
    name: str
    """The file's name, or `synthetic`."""
    conversations: list[Conversation]
    synthetic: bool
    format: str | None = None
    note: str | None = None
    """A sentence for the user about something in the file that is not used."""
    recording: Recording | None = None
    """Instead of conversations: bodies that are sent as they lie in the file."""


def load(
    settings: InputSettings,
    default_count: int,
    tokenizer: Callable[[], Tokenizer],
    progress: Progress | None = None,
    *,
    scheduled: bool = False,
) -> Dataset:
    """The tokenizer is asked for only when prompts are made up; `scheduled`: the run sends at recorded times."""
    if settings.file is None:
        if settings.format is not None:
            raise UserError(
                f"The dataset format '{settings.format}' needs a file: add --input-file, or leave out "
                "--custom-dataset-type for synthetic prompts."
            )
        count = default_count if settings.entries is None else settings.entries
        return Dataset("synthetic", synthesize(settings, count, tokenizer(), progress), synthetic=True)
    path = settings.file
    format_ = detect(path, scheduled=scheduled) if settings.format is None else lookup(settings.format)
    contents = format_.read(path, settings)
    conversations = _with_pauses(_with_lengths(contents.conversations, settings), settings.conversation.delay_ratio)
    return Dataset(
        os.path.basename(path.rstrip("/")),
        conversations,
        synthetic=False,
        format=format_.name,
        note=contents.note,
        recording=contents.recording,
    )


def _with_lengths(conversations: list[Conversation], settings: InputSettings) -> list[Conversation]:
    """The run's reply length for each turn that has none of its own."""
    mean, stddev = settings.output_tokens_mean, settings.output_tokens_stddev
    if mean is None:
        return conversations
    rng = stream(fresh_seed() if settings.seed is None else settings.seed, "output lengths")

    def with_length(turn: Turn) -> Turn:
        # Drawn for every turn, used or not, so that a line's own length does not change those of the lines behind it.
        drawn = length(rng, mean, stddev)
        return turn if turn.output_tokens is not None else msgspec.structs.replace(turn, output_tokens=drawn)

    return [
        msgspec.structs.replace(each, turns=tuple([with_length(turn) for turn in each.turns])) for each in conversations
    ]


def _with_pauses(conversations: list[Conversation], ratio: float) -> list[Conversation]:
    if ratio == 1:
        return conversations

    def scaled(turn: Turn) -> Turn:
        return msgspec.structs.replace(turn, delay_ms=turn.delay_ms * ratio) if turn.delay_ms else turn

    return [msgspec.structs.replace(each, turns=tuple(map(scaled, each.turns))) for each in conversations]
