"""Conversations of prompts of exact lengths, all different from their first words on, the same for the same seed.

The prompts are made in chunks. The first chunk is counted as a whole: when every text in it has the length that its
pieces promised, the tokenizer splits text where pieces meet, and the rest need no counting (550 tokens: 17 µs to put
together, 100 to 600 µs to count). At that length it holds ten thousand joins, so each sentence of the bank has been
seen in several places. When a single text is off, this chunk and all others are counted and corrected one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle, islice, repeat
from random import Random

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.exact_length import fit
from penstock.datasets.media.audio import audio_clips
from penstock.datasets.media.images import images
from penstock.datasets.random_streams import conversation_ids, fresh_seed, length, normal, stream
from penstock.datasets.sentences import opening
from penstock.datasets.text_pieces import TextPieces, build_text_pieces
from penstock.errors import UserError
from penstock.processes import cores
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer

__all__ = ["Progress", "Synthetic"]

Progress = Callable[[int, int], None]
"""Called with (done, total) now and then, and at the end."""

_CHUNK_TEXTS = 256
_CHUNK_TOKENS = 200_000
_CHUNK_LEAST = 8
_REDRAWS = 8


class Synthetic:
    """Conversations that are made as they are asked for: a million prompts of one run never are in memory together."""

    def __init__(
        self, settings: InputSettings, count: int, tokenizer: Tokenizer, progress: Progress | None = None
    ) -> None:
        self._settings = settings
        self._seed = fresh_seed() if settings.seed is None else settings.seed
        self._writer = _Writer(tokenizer, self._seed)
        self._progress = progress
        shape = settings.conversation
        numbers = stream(self._seed, "turns")
        self.turns = [length(numbers, shape.turns_mean, shape.turns_stddev) for _ in range(count)]
        """How many each conversation has."""

    def __iter__(self) -> Iterator[Conversation]:
        settings, seed, writer = self._settings, self._seed, self._writer
        turns = _turns(settings, seed, sum(self.turns), writer, self._progress)
        turns = _with_media(turns, settings, seed, self._progress)
        shape = settings.conversation
        if not shape.system_tokens and not shape.context_tokens:
            return self._conversations(turns, None, repeat(None, len(self.turns)))
        turns = iter(list(turns))  # before what goes before them, so that the same seed gives the same prompts
        system = writer.exact(shape.system_tokens) if shape.system_tokens else None
        contexts: Iterable[str | None] = repeat(None, len(self.turns))
        if shape.context_tokens:
            contexts = writer.write([shape.context_tokens] * len(self.turns))
        return iter(_with_sizes(list(self._conversations(turns, system, contexts)), writer))

    def _conversations(
        self, turns: Iterator[Turn], system: str | None, contexts: Iterable[str | None]
    ) -> Iterator[Conversation]:
        settings = self._settings
        ids = conversation_ids(settings.seed)
        pauses = stream(self._seed, "pauses")
        for size, context in zip(self.turns, contexts, strict=True):
            first, *others = islice(turns, size)
            later = [msgspec.structs.replace(turn, delay_ms=_pause(pauses, settings)) for turn in others]
            yield Conversation(id=next(ids), turns=(first, *later), system=system, context=context, accumulate=True)


def _turns(
    settings: InputSettings, seed: int, count: int, writer: _Writer, progress: Progress | None
) -> Iterator[Turn]:
    inputs, outputs = stream(seed, "input lengths"), stream(seed, "output lengths")
    targets = [length(inputs, settings.input_tokens_mean, settings.input_tokens_stddev) for _ in range(count)]
    done = 0
    for chunk in _chunks(targets, settings.batch):
        texts = writer.write([target for target in chunk for _ in range(settings.batch)])
        groups = [tuple(texts[at : at + settings.batch]) for at in range(0, len(texts), settings.batch)]
        # Several texts are counted joined: the first word of a text can count differently behind another text.
        sizes = chunk if settings.batch == 1 else writer.count([" ".join(group) for group in groups])
        done += len(chunk)
        if progress:
            progress(done, count)
        for group, size in zip(groups, sizes, strict=True):
            wanted = (
                None
                if settings.output_tokens_mean is None
                else length(outputs, settings.output_tokens_mean, settings.output_tokens_stddev)
            )
            yield Turn(texts=group, input_tokens=size, output_tokens=wanted)


def _with_media(turns: Iterator[Turn], settings: InputSettings, seed: int, progress: Progress | None) -> Iterator[Turn]:
    """Images and clips in their order; when there are fewer than turns need, they begin again."""
    if not settings.images.wanted and not settings.audio.wanted:
        return turns
    found = list(turns)
    for field, wanted in (("images", settings.images.wanted), ("audios", settings.audio.wanted)):
        if not wanted:
            continue
        count = wanted * len(found)
        if field == "images":
            media = images(settings.images, seed, count, progress)
        else:
            media = audio_clips(settings.audio, seed, count, progress)
        endless = cycle(media)
        found = [msgspec.structs.replace(turn, **{field: tuple(islice(endless, wanted))}) for turn in found]
    return iter(found)


def _pause(rng: Random, settings: InputSettings) -> float:
    shape = settings.conversation
    return max(0.0, normal(rng, shape.delay_mean_ms, shape.delay_stddev_ms)) * shape.delay_ratio


def _with_sizes(conversations: list[Conversation], writer: _Writer) -> list[Conversation]:
    """The lengths of prompts with what goes before them, where no reply comes between. As a rule a text has as many tokens
    behind another as alone, or one more or less: a sample tells, and only where it does not, all are counted."""

    def joined(each: Conversation) -> str:
        return " ".join([text for text in (each.system, each.context, *each.turns[0].texts) if text is not None])

    single = [each for each in conversations if len(each.turns) == 1]
    sample = single[:_CHUNK_TEXTS]
    more = {
        count - (each.turns[0].input_tokens or 0)
        for each, count in zip(sample, writer.count([joined(each) for each in sample]), strict=True)
    }
    if len(more) == 1:
        sizes = iter([(each.turns[0].input_tokens or 0) + next(iter(more)) for each in single])
    else:
        sizes = iter(writer.count([joined(each) for each in single]))

    def sized(each: Conversation) -> Conversation:
        if len(each.turns) > 1:
            return each
        turn = msgspec.structs.replace(each.turns[0], input_tokens=next(sizes))
        return msgspec.structs.replace(each, turns=(turn,))

    return [sized(each) for each in conversations]


class _Writer:
    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._threads = min(4, cores())
        # Streams of their own, so that a prompt does not depend on how many follow it in its chunk.
        self._openings, self._bodies, self._repairs = (stream(seed, part) for part in ("openings", "bodies", "repairs"))
        self._bank: TextPieces = build_text_pieces(tokenizer, stream(seed, "bank"))
        self._adds_up: bool | None = None
        """None until the first chunk has been counted."""
        self._begun: set[str] = set()
        self._short: set[str] = set()

    def write(self, targets: list[int]) -> list[str]:
        texts, short = self._compose(targets)
        if self._adds_up is None:
            counts = self.count(texts)
            self._adds_up = counts == targets and self._bank.complete
        elif self._adds_up:
            # Short texts are always counted: it costs little, and not every vocabulary has pieces for each of them.
            counts = list(targets)
            for at, count in zip(short, self.count([texts[at] for at in short]), strict=True):
                counts[at] = count
        else:
            counts = self.count(texts)
        return [
            text if have == target else self._fitted(text, target)
            for text, have, target in zip(texts, counts, targets, strict=True)
        ]

    def exact(self, target: int) -> str:
        """One text, counted whatever was found out about the others."""
        text = self.write([target])[0]
        return text if self.count([text]) == [target] else self._fitted(text, target)

    def count(self, texts: list[str]) -> list[int]:
        return self._tokenizer.count_many(texts, self._threads)

    def _compose(self, targets: list[int]) -> tuple[list[str], list[int]]:
        """Texts that should have the target lengths, and which of them are too short for an opening sentence."""
        bank, rng = self._bank, self._bodies
        openings = [_unlike(self._begun, opening, self._openings, words=3) for _ in targets]
        texts: list[str] = []
        short: list[int] = []
        for first, have, target in zip(openings, self._tokenizer.count_many(openings), targets, strict=True):
            if bank.reaches(target - have):
                texts.append(first + bank.tail(target - have, rng))
            else:
                short.append(len(texts))
                texts.append(_unlike(self._short, partial(bank.short, target), rng, words=target))
        return texts, short

    def _fitted(self, text: str, target: int) -> str:
        fitted = fit(text, target, self._tokenizer.count, self._bank, self._repairs)
        if fitted is None:
            raise UserError(
                f"No text of exactly {target} tokens was found for the tokenizer '{self._tokenizer.name}'; choose "
                "another prompt length (--isl) or another tokenizer (--tokenizer)."
            )
        return fitted


def _unlike(earlier: set[str], draw: Callable[[Random], str], rng: Random, words: int) -> str:
    """Drawn again when it begins like an earlier one. Not for ever: there are only so many texts of one token."""
    for _ in range(_REDRAWS):
        text = draw(rng)
        begin = " ".join(text.split(" ", words)[:words])
        if begin not in earlier:
            earlier.add(begin)
            break
    return text


def _chunks(targets: list[int], batch: int) -> Iterator[list[int]]:
    begin = tokens = 0
    for end, target in enumerate(targets, 1):
        tokens += target * batch
        texts = (end - begin) * batch
        if texts >= _CHUNK_TEXTS or (tokens >= _CHUNK_TOKENS and texts >= _CHUNK_LEAST) or end == len(targets):
            yield targets[begin:end]
            begin, tokens = end, 0
