"""Datasets: where the conversations of a run come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from penstock.datasets.conversation import Conversation
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.schedule_part import SchedulePart
from penstock.datasets.source_files import SourceFile
from penstock.settings.schema import ScheduleSettings
from penstock.tokens.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
Edit = Callable[[Conversation], Conversation]


class ReadOptions(NamedTuple):
    """How a run uses its dataset."""

    schedule: ScheduleSettings | None = None
    """Set if requests are sent at their recorded times."""
    body_key: str | None = None
    """A key that every recorded body must have."""
    progress: Progress | None = None
    tokenizer: Callable[[], Tokenizer] | None = None
    whole_bytes: int = 4 << 20
    """A file of rows up to this size is read to its end before the run; of a larger one a quarter of it is checked."""


class Dataset(ABC):
    """The conversations of a run. A dataset has one method of its own: `read`, which yields what fills the payload store.

    `read` is an iterator, so that another process, forked in the meantime, can continue it: the rest of a large file is read
    while its first conversations are sent.
    """

    name = ""
    """The file's name, or `synthetic`."""
    format: str | None = None
    synthetic = False
    verbatim = False
    """True if bodies are sent as they are in `files`."""
    drawn = False
    """True if the conversations are drawn from the file with the seed."""
    writes_prompts = False
    """True if turns of a trace have lengths instead of texts, and the texts are written with the seed."""
    block_size = 512
    """Tokens that a hash id of a trace stands for."""
    note: str | None = None
    """A sentence for the user about unused fields of the file."""
    files: Sequence[SourceFile] = ()
    """Files that `read` reads."""
    reads_on = False
    """True if `read` may go on while the run sends."""
    scanned = 0
    """The number of bytes of `files` that `read` has read."""
    turns: Sequence[int] = ()
    """The number of turns of each conversation, in the order of `read`; empty if it is not known yet."""
    accumulates = False
    """True if a conversation of several turns is sent with its earlier turns."""
    has_trees = False
    """True if conversations may start others."""
    edits: Sequence[Edit] = ()
    """Changes of each conversation that flags of the run ask for."""

    def prepare(self, options: ReadOptions) -> None:
        """Check the beginning of the input, or all of it if that is necessary, and raise UserError for errors in it. This is
        called once before `read`."""
        del options

    @abstractmethod
    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        """Yield the conversations in the order in which they are sent, and add the errors of the input to `errors`."""

    def conversations(self, errors: FileErrors) -> Iterator[Conversation]:
        """Yield the conversations of `read` with the changes that the run asks for. Iterate over them once only."""
        return reduce(lambda conversations, edit: map(edit, conversations), self.edits, self.read(errors))

    def notes(self) -> list[str]:
        """Return sentences for the user about the part that was read, which are not errors."""
        return []

    @property
    def depends_on_seed(self) -> bool:
        """True if the seed decides what the prompts are, and not only their order."""
        return self.synthetic or self.writes_prompts or self.drawn

    @property
    def context_mode(self) -> str:
        """AIPerf's name for what a turn is sent with."""
        if self.verbatim or (max(self.turns, default=1) > 1 and not self.accumulates):
            return "message_array_with_responses"
        return "deltas_without_responses"


class Contents(Dataset):
    """A dataset that a format has read whole."""

    def __init__(self, conversations: Sequence[Conversation], note: str | None = None, block_size: int = 512) -> None:
        self.note = note
        self.block_size = block_size
        self._keep(conversations)
        self.accumulates = any(each.accumulate for each in conversations if len(each.turns) > 1)
        self.writes_prompts = any(turn.prompt is not None for each in conversations for turn in each.turns)
        self._part = SchedulePart()

    def _keep(self, conversations: Sequence[Conversation]) -> None:
        self._conversations = conversations
        self.turns = [len(each.turns) for each in conversations]

    def prepare(self, options: ReadOptions) -> None:
        self._part = SchedulePart(options.schedule)
        if options.schedule is not None:
            in_order = sorted(self._conversations, key=self._part.start_ms)
            self._keep(list(self._part.select(in_order, FileErrors(self.name))))

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        del errors
        return iter(self._conversations)

    def notes(self) -> list[str]:
        return self._part.notes()


class StoredDataset(Dataset):
    """The dataset of a run that is resumed: its conversations are in the payload store."""

    def __init__(self, name: str, turns: Sequence[int], format_: str | None) -> None:
        self.name = name
        self.turns = turns
        self.format = format_
        self.synthetic = format_ is None

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        del errors
        return iter(())
