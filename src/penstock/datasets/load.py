"""Loads the dataset of a run: reads a file or generates prompts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import Contents, Dataset, Edit, Progress, ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.formats import lookup
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.public import fetch
from penstock.datasets.random_streams import fresh_seed, length, stream
from penstock.datasets.trace_prompts import TracePrompts
from penstock.datasets.trace_synthesis import synthesize
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, ScheduleSettings, SynthesisSettings
from penstock.tokens.tokenizer import Tokenizer


def task(settings: InputSettings) -> str:
    """Return what `load` does, to show it with its progress."""
    return "Preparing prompts" if settings.file is None else f"Reading {_name(settings.file)}"


def _name(path: str) -> str:
    return os.path.basename(path.rstrip("/"))


def load(
    settings: InputSettings,
    default_count: int,
    tokenizer: Callable[[], Tokenizer],
    progress: Progress | None = None,
    *,
    schedule: ScheduleSettings | None = None,
    body_key: str | None = None,
) -> Dataset:
    """Load the dataset. `tokenizer` is called if texts are generated or counted. `schedule` is that of a run that replays
    recorded times, and `body_key` is a key that every recorded body must have."""
    if settings.file is None:
        if settings.format is not None:
            raise UserError(
                f"The dataset format '{settings.format}' needs a file: add --input-file, or leave out "
                "--custom-dataset-type for synthetic prompts."
            )
        from penstock.datasets.synthetic import Synthetic

        count = default_count if settings.entries is None else settings.entries
        return Synthetic(settings, count, tokenizer() if settings.texts else None, progress)
    path = settings.file if settings.public is None else fetch(settings.public, progress)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(
            f"The input file '{path}' is a pipe or a device, and the input is read several times; save it to a file first."
        )
    format_ = detect(path, scheduled=schedule is not None) if settings.format is None else lookup(settings.format)
    dataset = format_.read(path, settings)
    options = ReadOptions(schedule, body_key, progress, tokenizer)
    if settings.synthesis != SynthesisSettings():
        dataset = _synthesized(dataset, settings, format_.name, options)
    dataset.name = _name(path)
    dataset.format = format_.name
    dataset.drawn = format_.draws
    dataset.prepare(options)
    if settings.corpus is not None and not dataset.writes_prompts:
        raise UserError(
            f"--prompt-corpus applies to synthetic prompts, but '{settings.file}' ({format_.name}) has its own; leave it out."
        )
    dataset.edits = _edits(settings, dataset, tokenizer)
    return dataset


def _synthesized(dataset: Dataset, settings: InputSettings, format_name: str, options: ReadOptions) -> Dataset:
    """Return a dataset with the changes of a trace that the user asks for."""
    dataset.prepare(options._replace(schedule=None, whole_bytes=sys.maxsize))
    asked = settings.synthesis
    changes_lengths = asked != SynthesisSettings(
        speedup=asked.speedup, output_length=asked.output_length, max_output=asked.max_output
    )
    if dataset.verbatim or (changes_lengths and not dataset.writes_prompts):
        raise UserError(
            f"The flags --synthesis-… change a trace with 'input_length', but '{settings.file}' ({format_name}) has none."
        )
    original = list(dataset.read(FileErrors(dataset.name)))
    changed, note = synthesize(original, settings.synthesis, dataset.block_size, _seed(settings))
    if not changed:
        raise UserError(f"All requests of '{settings.file}' are longer than --synthesis-max-isl; give a larger value.")
    notes = [text for text in (dataset.note, *dataset.notes(), note) if text is not None]
    return Contents(changed, " ".join(notes) or None, dataset.block_size)


def _seed(settings: InputSettings) -> int:
    return fresh_seed() if settings.seed is None else settings.seed


def _edits(settings: InputSettings, dataset: Dataset, tokenizer: Callable[[], Tokenizer]) -> list[Edit]:
    """Return the changes of a conversation of a file that flags of the run ask for."""
    edits: list[Edit] = []
    if settings.output_tokens_mean is not None:
        edits.append(_output_tokens_setter(settings, settings.output_tokens_mean))
    if settings.conversation.delay_ratio != 1:
        edits.append(lambda each: _with_scaled_delays(each, settings.conversation.delay_ratio))
    if settings.system is not None:
        edits.append(lambda each: _with_system(each, settings.system))
    if not dataset.verbatim:
        edits.append(_prompt_writer(settings, dataset, tokenizer))
    return edits


def _prompt_writer(settings: InputSettings, dataset: Dataset, tokenizer: Callable[[], Tokenizer]) -> Edit:
    """Return a function that writes the texts of turns that have only their lengths. The tokenizer is loaded now if there are
    such turns in the checked part of the dataset, else for the first of them."""

    @cache
    def prompts() -> TracePrompts:
        return TracePrompts(tokenizer(), _seed(settings), settings.block_size or dataset.block_size, settings.corpus)

    def write(conversation: Conversation) -> Conversation:
        if all(turn.prompt is None for turn in conversation.turns):
            return conversation
        return msgspec.structs.replace(conversation, turns=tuple(map(prompts().write, conversation.turns)))

    if dataset.writes_prompts:
        prompts()
    return write


def _output_tokens_setter(settings: InputSettings, mean: float) -> Callable[[Conversation], Conversation]:
    """Return a function that sets the reply length of the run for each turn that has none."""
    stddev, shape = settings.output_tokens_stddev, settings.distribution("output_tokens_mean")
    rng = stream(_seed(settings), "output lengths")

    def with_length(turn: Turn) -> Turn:
        # Draw for every turn, so that a length given in one line does not change those of later lines.
        drawn = length(rng, mean, stddev, shape)
        return turn if turn.output_tokens is not None else msgspec.structs.replace(turn, output_tokens=drawn)

    return lambda each: msgspec.structs.replace(each, turns=tuple([with_length(turn) for turn in each.turns]))


def _with_system(conversation: Conversation, system: str | None) -> Conversation:
    first = conversation.turns[0]
    has_messages = any(message.get("role") == "system" for turn in conversation.turns for message in turn.messages)
    begins_with_one = first.role == "system" or any(map(_begins_with_system, conversation.turns))
    if conversation.system is not None or has_messages or begins_with_one:
        raise UserError(
            f"The conversation '{conversation.id}' of the file has a system prompt of its own; leave out --system-prompt, or "
            "remove it from the file."
        )
    return msgspec.structs.replace(conversation, system=system)


def _begins_with_system(turn: Turn) -> bool:
    """Return whether the turn has messages, as a row of a trace, and the first is a system prompt."""
    messages = turn.extra.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and first.get("role") == "system"


def _with_scaled_delays(conversation: Conversation, ratio: float) -> Conversation:
    def scaled(turn: Turn) -> Turn:
        return msgspec.structs.replace(turn, delay_ms=turn.delay_ms * ratio) if turn.delay_ms else turn

    return msgspec.structs.replace(conversation, turns=tuple(map(scaled, conversation.turns)))
