"""Loads the dataset of a run: reads a file or generates prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.detect_format import detect
from penstock.datasets.format import Contents
from penstock.datasets.large_trace import LargeTrace
from penstock.datasets.public import fetch
from penstock.datasets.random_streams import fresh_seed, length, stream
from penstock.datasets.recording import CONTEXT_MODE_COMPLETE, Recording
from penstock.datasets.registry import lookup
from penstock.datasets.trace_prompts import TracePrompts
from penstock.datasets.trace_synthesis import synthesize
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, SynthesisSettings
from penstock.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.datasets.synthetic import Progress

__all__ = ["Dataset", "load", "task"]

_CONTEXT_MODE_DELTAS = "deltas_without_responses"


class Dataset(NamedTuple):
    name: str
    """The file's name, or `synthetic`."""
    conversations: Iterable[Conversation]
    """Iterate over it once only: synthetic conversations are generated during iteration."""
    turns: list[int]
    """The number of turns of each conversation."""
    synthetic: bool
    format: str | None = None
    note: str | None = None
    """A sentence for the user about unused fields of the file."""
    recording: Recording | None = None
    """Replaces the conversations if bodies are sent as they are in the file."""
    context_mode: str = _CONTEXT_MODE_DELTAS
    """AIPerf's name for what a turn is sent with."""
    write_prompt: Callable[[Turn], Turn] | None = None
    """Writes the text of a turn of a trace that has only its length; None if every turn has its text."""
    large_trace: LargeTrace | None = None
    """Supplies the conversations instead, in parts."""
    edit: Callable[[Conversation], Conversation] | None = None
    """Applies the flags of the run to a conversation of `large_trace`."""
    drawn: bool = False
    """The conversations are drawn from the file with the seed."""

    @property
    def depends_on_seed(self) -> bool:
        """True if the seed decides what the prompts are, and not only their order."""
        return self.synthetic or self.write_prompt is not None or self.drawn


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
    scheduled: bool = False,
) -> Dataset:
    """Load the dataset. `tokenizer` is called if texts are generated or counted. With `scheduled`, the run replays recorded
    times."""
    if settings.file is None:
        if settings.format is not None:
            raise UserError(
                f"The dataset format '{settings.format}' needs a file: add --input-file, or leave out "
                "--custom-dataset-type for synthetic prompts."
            )
        from penstock.datasets.synthetic import Synthetic

        count = default_count if settings.entries is None else settings.entries
        synthetic = Synthetic(settings, count, tokenizer() if settings.texts else None, progress)
        return Dataset("synthetic", synthetic, synthetic.turns, synthetic=True)
    path = settings.file if settings.public is None else fetch(settings.public, progress)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(
            f"The input file '{path}' is a pipe or a device, and the input is read several times; save it to a file first."
        )
    format_ = detect(path, scheduled=scheduled) if settings.format is None else lookup(settings.format)
    contents = format_.read(path, settings)
    if contents.complete is not None:
        contents = contents.complete(tokenizer())
    contents = _synthesized(contents, settings, format_.name)
    edit = _editor(settings)
    name = _name(path)
    if (large := contents.large_trace) is not None:
        large.prepare(scheduled=scheduled, progress=progress)
        complete = max(large.turns, default=1) > 1 and not large.accumulates
        return Dataset(
            name,
            (),
            large.turns,
            synthetic=False,
            format=format_.name,
            context_mode=CONTEXT_MODE_COMPLETE if complete else _CONTEXT_MODE_DELTAS,
            write_prompt=_late_prompt_writer(large.first_turn(), settings, contents.block_size, tokenizer),
            large_trace=large,
            edit=edit,
        )
    conversations = list(map(edit, contents.conversations))
    write_prompt = _prompt_writer(
        [turn for each in conversations for turn in each.turns], settings, contents.block_size, tokenizer
    )
    if settings.corpus is not None and write_prompt is None:
        raise UserError(
            f"--prompt-corpus applies to synthetic prompts, but '{settings.file}' ({format_.name}) has its own; leave it out."
        )
    return Dataset(
        name,
        conversations,
        [len(each.turns) for each in conversations],
        synthetic=False,
        format=format_.name,
        note=contents.note,
        recording=contents.recording,
        context_mode=_context_mode(conversations, contents.recording),
        write_prompt=write_prompt,
        drawn=format_.draws,
    )


def _synthesized(contents: Contents, settings: InputSettings, format_name: str) -> Contents:
    """Apply the changes of a trace that the user asks for."""
    if settings.synthesis == SynthesisSettings():
        return contents
    if not any(turn.prompt is not None for each in contents.conversations for turn in each.turns):
        raise UserError(
            f"The flags --synthesis-… change a trace with 'input_length', but '{settings.file}' ({format_name}) has none."
        )
    seed = fresh_seed() if settings.seed is None else settings.seed
    conversations, note = synthesize(contents.conversations, settings.synthesis, contents.block_size, seed)
    if not conversations:
        raise UserError(f"All requests of '{settings.file}' are longer than --synthesis-max-isl; give a larger value.")
    notes = [text for text in (contents.note, note) if text is not None]
    return contents._replace(conversations=conversations, note=" ".join(notes) or None)


def _prompt_writer(
    turns: Iterable[Turn], settings: InputSettings, block_size: int, tokenizer: Callable[[], Tokenizer]
) -> Callable[[Turn], Turn] | None:
    if not any(turn.prompt is not None for turn in turns):
        return None
    seed = fresh_seed() if settings.seed is None else settings.seed
    return TracePrompts(tokenizer(), seed, settings.block_size or block_size, settings.corpus).write


def _late_prompt_writer(
    first: Turn, settings: InputSettings, block_size: int, tokenizer: Callable[[], Tokenizer]
) -> Callable[[Turn], Turn]:
    """Return a function that writes prompts. If the first turn has a text, the tokenizer is loaded for one that has none."""
    writer = _prompt_writer([first], settings, block_size, tokenizer)

    def write(turn: Turn) -> Turn:
        nonlocal writer
        if writer is None:
            writer = _prompt_writer([turn], settings, block_size, tokenizer)
        return turn if writer is None else writer(turn)

    return write


def _context_mode(conversations: list[Conversation], recording: Recording | None) -> str:
    multi_turn = [each for each in conversations if len(each.turns) > 1]
    if recording is not None or (multi_turn and not any(each.accumulate for each in multi_turn)):
        return CONTEXT_MODE_COMPLETE
    return _CONTEXT_MODE_DELTAS


def _editor(settings: InputSettings) -> Callable[[Conversation], Conversation]:
    """Return the function that applies the flags of the run to a conversation of a file."""
    edits = []
    if settings.output_tokens_mean is not None:
        edits.append(_output_tokens_setter(settings, settings.output_tokens_mean))
    if settings.conversation.delay_ratio != 1:
        edits.append(lambda each: _with_scaled_delays(each, settings.conversation.delay_ratio))
    if settings.system is not None:
        edits.append(lambda each: _with_system(each, settings.system))
    return lambda each: reduce(lambda result, edit: edit(result), edits, each)


def _output_tokens_setter(settings: InputSettings, mean: float) -> Callable[[Conversation], Conversation]:
    """Return a function that sets the reply length of the run for each turn that has none."""
    stddev = settings.output_tokens_stddev
    rng = stream(fresh_seed() if settings.seed is None else settings.seed, "output lengths")

    def with_length(turn: Turn) -> Turn:
        # Draw for every turn, so that a length given in one line does not change those of later lines.
        drawn = length(rng, mean, stddev)
        return turn if turn.output_tokens is not None else msgspec.structs.replace(turn, output_tokens=drawn)

    return lambda each: msgspec.structs.replace(each, turns=tuple([with_length(turn) for turn in each.turns]))


def _with_system(conversation: Conversation, system: str | None) -> Conversation:
    first = conversation.turns[0]
    if conversation.system is not None or first.role == "system" or any(map(_begins_with_system, conversation.turns)):
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
