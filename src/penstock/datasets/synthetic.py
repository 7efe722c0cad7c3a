"""Synthetic conversations: prompts of exact lengths that differ in their first words, the same for the same seed.

Prompts are assembled in chunks from pieces with known token counts. All texts of the first chunk are counted. If each
has the sum of the counts of its pieces, later chunks are not counted (a prompt of 550 tokens takes 17 µs to assemble
and 100 to 600 µs to count); at that length the chunk has ten thousand joins, so that it tests each sentence several
times. If one text differs, the texts of all chunks are counted and corrected one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, cycle, islice, repeat
from random import Random

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.corpora import corpus
from penstock.datasets.dataset import Dataset, Progress
from penstock.datasets.exact_length import fit_length
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.lengths import draw_lengths
from penstock.datasets.media.audio import audio_clips
from penstock.datasets.media.images import images
from penstock.datasets.random_streams import conversation_ids, fresh_seed, length, number, stream
from penstock.datasets.sentences import pick
from penstock.datasets.text_pieces import TextPieces, build_text_pieces
from penstock.errors import UserError
from penstock.processes import cores
from penstock.settings.schema import InputSettings
from penstock.tokens.chat_template import ChatTokenizer
from penstock.tokens.tokenizer import Tokenizer

_CHUNK_TEXTS = 256
_CHUNK_TOKENS = 200_000
_CHUNK_MIN_TEXTS = 8
_REDRAWS = 8


class Synthetic(Dataset):
    """Conversations that are generated while they are iterated over, so that not all prompts are in memory."""

    name = "synthetic"
    synthetic = True
    accumulates = True

    def __init__(
        self, settings: InputSettings, count: int, tokenizer: Tokenizer | None, progress: Progress | None = None
    ) -> None:
        self._settings = settings
        self._seed = fresh_seed() if settings.seed is None else settings.seed
        self._writer = None if tokenizer is None else _Writer(tokenizer, self._seed, settings.corpus)
        self._chat = tokenizer if isinstance(tokenizer, ChatTokenizer) else None
        self._progress = progress
        shape = settings.conversation
        rng = stream(self._seed, "turns")
        turns = shape.turns_mean, shape.turns_stddev, settings.distribution("conversation.turns_mean")
        self.turns = [length(rng, *turns) for _ in range(count)]
        """The number of turns of each conversation."""

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        del errors
        settings, seed, writer = self._settings, self._seed, self._writer
        if writer is None:
            media_only = _with_media(repeat(Turn(), sum(self.turns)), settings, seed, self._progress)
            return self._conversations(media_only, None, repeat(None, len(self.turns)))
        if settings.ranks:
            turns = _rankings(settings, seed, sum(self.turns), writer, self._progress)
        else:
            turns = _turns(settings, seed, sum(self.turns), writer, self._progress, self._template_tokens())
        turns = _with_media(turns, settings, seed, self._progress)
        if not self._extends_prompts:
            return self._conversations(turns, None, repeat(None, len(self.turns)))
        shape = settings.conversation
        # Drawn first, so that a system prompt, a context or a prefix does not change the prompts.
        turns = iter(self._with_prefixes(list(turns), writer))
        system = writer.exact(shape.system_tokens) if shape.system_tokens else settings.system
        contexts: Iterable[str | None] = repeat(None, len(self.turns))
        if shape.context_tokens:
            contexts = writer.write([shape.context_tokens] * len(self.turns))
        return iter(_with_input_tokens(list(self._conversations(turns, system, contexts)), writer, self._chat))

    @property
    def _extends_prompts(self) -> bool:
        """True if requests have more tokens than their prompts."""
        shape = self._settings.conversation
        added = shape.system_tokens or shape.context_tokens or shape.prefix_tokens or self._settings.system
        return bool(added) or self._chat is not None

    def _template_tokens(self) -> int:
        """Return the number of tokens that the chat template adds to a request."""
        if self._chat is None:
            return 0
        shape = self._settings.conversation
        system = ["system"] if shape.system_tokens or self._settings.system else []
        return self._chat.added_tokens(*system, *(["user"] if shape.context_tokens else []), "user")

    def _with_prefixes(self, turns: list[Turn], writer: _Writer) -> list[Turn]:
        """Put one of the prefixes before the first text of each conversation."""
        shape = self._settings.conversation
        if not shape.prefix_tokens:
            return turns
        prefixes = [writer.exact(shape.prefix_tokens) for _ in range(shape.prefixes)]
        rng = stream(self._seed, "prefixes")
        firsts = list(accumulate(self.turns, initial=0))[:-1]
        prompts = [turns[first].texts[0] for first in firsts]
        joined = writer.join([pick(rng, prefixes) for _ in firsts], prompts, shape.prefix_tokens)
        groups = [(text, *turns[first].texts[1:]) for first, text in zip(firsts, joined, strict=True)]
        counts = writer.count([" ".join(group) for group in groups])
        for first, group, count in zip(firsts, groups, counts, strict=True):
            turns[first] = msgspec.structs.replace(turns[first], texts=group, input_tokens=count)
        return turns

    def _conversations(
        self, turns: Iterator[Turn], system: str | None, contexts: Iterable[str | None]
    ) -> Iterator[Conversation]:
        settings = self._settings
        ids = conversation_ids(settings.seed)
        rng = stream(self._seed, "pauses")
        for size, context in zip(self.turns, contexts, strict=True):
            first, *others = islice(turns, size)
            later = [msgspec.structs.replace(turn, delay_ms=_delay_ms(rng, settings)) for turn in others]
            yield Conversation(id=next(ids), turns=(first, *later), system=system, context=context, accumulate=True)


def _turns(
    settings: InputSettings, seed: int, count: int, writer: _Writer, progress: Progress | None, template_tokens: int
) -> Iterator[Turn]:
    """Generate the turns. Prompts are shorter than their drawn lengths by `template_tokens`."""
    targets, outputs = draw_lengths(settings, seed, count)
    if targets and min(targets) <= template_tokens:
        raise UserError(
            f"The chat template adds {template_tokens} tokens to a request, so a prompt of {min(targets)} (--isl) is not "
            "possible; give a larger one, or leave out --apply-chat-template."
        )
    targets = [target - template_tokens for target in targets]
    done = 0
    for chunk in _chunks(targets, settings.batch):
        texts = writer.write([target for target in chunk for _ in range(settings.batch)])
        groups = [tuple(texts[begin : begin + settings.batch]) for begin in range(0, len(texts), settings.batch)]
        sizes = [target * settings.batch for target in chunk]
        if settings.batch > 1 and not settings.separate_texts:
            # The first word of a text can count differently after another text.
            sizes = writer.count([" ".join(group) for group in groups])
        done += len(chunk)
        if progress:
            progress(done, count)
        for group, size in zip(groups, sizes, strict=True):
            yield Turn(texts=group, input_tokens=size, output_tokens=next(outputs))


def _rankings(
    settings: InputSettings, seed: int, count: int, writer: _Writer, progress: Progress | None
) -> Iterator[Turn]:
    """Generate turns whose first text is a query and whose other texts are passages."""
    queries, sizes, passages = (stream(seed, f"ranking {part}") for part in ("queries", "sizes", "passages"))
    of, shape = settings.rankings, settings.distribution
    number_of = of.passages_mean, of.passages_stddev, shape("rankings.passages_mean")
    query = of.query_tokens_mean, of.query_tokens_stddev, shape("rankings.query_tokens_mean")
    passage = of.passage_tokens_mean, of.passage_tokens_stddev, shape("rankings.passage_tokens_mean")

    def targets() -> list[int]:
        size = length(sizes, *number_of)
        return [length(queries, *query), *(length(passages, *passage) for _ in range(size))]

    done = 0
    while done < count:
        chunk: list[list[int]] = []
        while done + len(chunk) < count and sum(map(len, chunk)) < _CHUNK_TEXTS:
            chunk.append(targets())
        texts = iter(writer.write([target for group in chunk for target in group]))
        groups = [tuple(islice(texts, len(group))) for group in chunk]
        done += len(chunk)
        if progress:
            progress(done, count)
        for group, tokens in zip(groups, writer.count([" ".join(group) for group in groups]), strict=True):
            yield Turn(texts=group, input_tokens=tokens)


def _with_media(turns: Iterator[Turn], settings: InputSettings, seed: int, progress: Progress | None) -> Iterator[Turn]:
    """Add images and audio clips in order, repeating them if there are fewer than the turns need."""
    if not settings.images.per_turn and not settings.audio.per_turn:
        return turns
    extended = list(turns)
    for field, per_turn in (("images", settings.images.per_turn), ("audios", settings.audio.per_turn)):
        if not per_turn:
            continue
        count = per_turn * len(extended)
        if field == "images":
            media = images(settings.images, seed, count, progress, settings.distribution)
        else:
            media = audio_clips(settings.audio, seed, count, progress, settings.distribution)
        repeated = cycle(media)
        extended = [msgspec.structs.replace(turn, **{field: tuple(islice(repeated, per_turn))}) for turn in extended]
    return iter(extended)


def _delay_ms(rng: Random, settings: InputSettings) -> float:
    shape = settings.conversation
    drawn = settings.distribution("conversation.delay_mean_ms")
    return max(0.0, number(rng, shape.delay_mean_ms, shape.delay_stddev_ms, drawn)) * shape.delay_ratio


def _with_input_tokens(
    conversations: list[Conversation], writer: _Writer, chat: ChatTokenizer | None
) -> list[Conversation]:
    """Add the tokens of the system prompt, the context and the chat template to those of conversations of one turn.

    If both add the same number to every prompt of a sample, the other prompts are not counted.
    """

    def joined(conversation: Conversation) -> str:
        texts = (conversation.system, conversation.context, *conversation.turns[0].texts)
        if chat is not None:
            prompt = "\n".join(conversation.turns[0].texts)
            roles = (("system", conversation.system), ("user", conversation.context), ("user", prompt))
            return chat.render([{"role": role, "content": text} for role, text in roles if text is not None])
        return " ".join([text for text in texts if text is not None])

    single = [each for each in conversations if len(each.turns) == 1]
    sample = single[:_CHUNK_TEXTS]
    added = {
        count - (each.turns[0].input_tokens or 0)
        for each, count in zip(sample, writer.count([joined(each) for each in sample]), strict=True)
    }
    if len(added) == 1:
        counts = iter([(each.turns[0].input_tokens or 0) + next(iter(added)) for each in single])
    else:
        counts = iter(writer.count([joined(each) for each in single]))

    def with_count(conversation: Conversation) -> Conversation:
        if len(conversation.turns) > 1:
            return conversation
        turn = msgspec.structs.replace(conversation.turns[0], input_tokens=next(counts))
        return msgspec.structs.replace(conversation, turns=(turn,))

    return [with_count(each) for each in conversations]


class _Writer:
    """Writes texts of exact token counts."""

    def __init__(self, tokenizer: Tokenizer, seed: int, corpus_name: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus(corpus_name, tokenizer)
        self._threads = min(4, cores())
        # Separate streams, so that a prompt does not depend on the number of prompts after it in its chunk.
        self._openings, self._bodies, self._repairs = (stream(seed, part) for part in ("openings", "bodies", "repairs"))
        self._pieces: TextPieces = build_text_pieces(tokenizer, stream(seed, "bank"), self._corpus)
        self._counts_add_up: bool | None = None
        """None until the first chunk has been counted."""
        self._opening_words: set[str] = set()
        self._short_texts: set[str] = set()

    def write(self, targets: list[int]) -> list[str]:
        texts, short = self._compose(targets)
        if self._counts_add_up is None:
            counts = self.count(texts)
            self._counts_add_up = counts == targets and self._pieces.complete
        elif self._counts_add_up:
            # Always count short texts: that is cheap, and some vocabularies lack pieces for short lengths.
            counts = list(targets)
            for index, count in zip(short, self.count([texts[index] for index in short]), strict=True):
                counts[index] = count
        else:
            counts = self.count(texts)
        return [
            text if count == target else self._fitted(text, target)
            for text, count, target in zip(texts, counts, targets, strict=True)
        ]

    def exact(self, target: int) -> str:
        """Write one text and count it even if the counts of pieces add up."""
        text = self.write([target])[0]
        return text if self.count([text]) == [target] else self._fitted(text, target)

    def join(self, prefixes: list[str], texts: list[str], prefix_tokens: int) -> list[str]:
        """Put a prefix before each text. The joined text has the tokens of both; if not, the end of the text changes."""
        joined = [f"{prefix} {text}" for prefix, text in zip(prefixes, texts, strict=True)]
        targets = [prefix_tokens + count for count in self.count(texts)]
        counts = self.count(joined)
        return [
            text if count == target else self._fitted(text, target)
            for text, count, target in zip(joined, counts, targets, strict=True)
        ]

    def count(self, texts: list[str]) -> list[int]:
        return self._tokenizer.count_many(texts, self._threads)

    def _compose(self, targets: list[int]) -> tuple[list[str], list[int]]:
        """Return texts that should have the target lengths, and the indexes of those without an opening sentence."""
        pieces, rng = self._pieces, self._bodies
        openings = [
            _draw_different(self._opening_words, self._corpus.opening, self._openings, words=3) for _ in targets
        ]
        texts: list[str] = []
        short: list[int] = []
        for opening, count, target in zip(openings, self._tokenizer.count_many(openings), targets, strict=True):
            if pieces.can_add(target - count):
                texts.append(opening + pieces.continuation(target - count, rng))
            else:
                short.append(len(texts))
                texts.append(_draw_different(self._short_texts, partial(pieces.short_text, target), rng, words=target))
        return texts, short

    def _fitted(self, text: str, target: int) -> str:
        fitted = fit_length(text, target, self._tokenizer.count, self._pieces, self._repairs)
        if fitted is None:
            raise UserError(
                f"No text of exactly {target} tokens was found for the tokenizer '{self._tokenizer.name}'; choose "
                "another prompt length (--isl) or another tokenizer (--tokenizer)."
            )
        return fitted


def _draw_different(earlier: set[str], draw: Callable[[Random], str], rng: Random, words: int) -> str:
    """Draw a text, up to 8 times as long as an earlier text has the same first `words`. Texts of one token are few, so the last
    draw may repeat one."""
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
        if texts >= _CHUNK_TEXTS or (tokens >= _CHUNK_TOKENS and texts >= _CHUNK_MIN_TEXTS) or end == len(targets):
            yield targets[begin:end]
            begin, tokens = end, 0
