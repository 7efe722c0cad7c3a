"""The `sharegpt` format: the JSON list of conversations of the ShareGPT dataset.

    [{"id": "a1", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi! How can I help?"}]}, …]

As in the benchmarks of vLLM, a request has the first message of a conversation, and asks for as many tokens as the second
one has. Very short and very long ones are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import replace_lone_surrogates
from penstock.datasets.jsonl import BOM, empty_file, explain, open_failure
from penstock.datasets.random_streams import conversation_ids
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer

_NAME = "sharegpt"
_ENTRIES = 1000
_MIN_TOKENS, _MAX_PROMPT_TOKENS, _MAX_TOKENS = 4, 1024, 2048
_CHUNK = 256
"""Conversations that are counted at once."""
_HEAD = 1 << 16


class _Message(msgspec.Struct):
    value: str


class _Entry(msgspec.Struct):
    id: str | int | None = None
    conversations: list[_Message] = []


def _matches_file(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).removeprefix(BOM).lstrip()
    except OSError:
        return False
    return head.startswith(b"[") and b'"conversations"' in head


class ShareGpt(Contents):
    """The usable prompts of a file. They are chosen in `prepare`, which has the tokenizer."""

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__([])
        self._path = path
        self._settings = settings
        self._entries = [each for each in _entries(path) if len(each.conversations) >= 2]

    def prepare(self, options: ReadOptions) -> None:
        if options.tokenizer is not None:
            super().__init__(*_conversations(self._path, self._settings, self._entries, options.tokenizer()))
        super().prepare(options)


def _conversations(
    path: str, settings: InputSettings, entries: list[_Entry], tokenizer: Tokenizer
) -> tuple[list[Conversation], str]:
    """Return the conversations, and a sentence about their number."""
    begin = 0
    wanted = settings.entries or _ENTRIES
    used: list[tuple[str, int]] = []
    for begin in range(0, len(entries), _CHUNK):
        used += _usable(entries[begin : begin + _CHUNK], tokenizer)
        if len(used) >= wanted:
            break
    if not used:
        raise UserError(
            f"'{path}' has no conversation whose first message has {_MIN_TOKENS} to {_MAX_PROMPT_TOKENS:,} tokens and whose "
            f"second one has {_MIN_TOKENS} or more, with at most {_MAX_TOKENS:,} together."
        )
    ids = conversation_ids(settings.seed)
    own_length = settings.output_tokens_mean is not None
    conversations = [
        Conversation(id=next(ids), turns=(Turn(texts=(text,), output_tokens=None if own_length else length),))
        for text, length in used[:wanted]
    ]
    note = f"{path}: {len(conversations):,} prompts are used"
    if len(used) > wanted or begin + _CHUNK < len(entries):
        note += "; --num-dataset-entries sets the number"
    return conversations, f"{note}."


def _entries(path: str) -> list[_Entry]:
    try:
        with open(path, "rb") as file:
            content = file.read().removeprefix(BOM)
    except OSError as error:
        raise open_failure(path, error) from None
    if not content.strip():
        raise empty_file(path)
    try:
        return _decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UserError(f"{os.path.basename(path)}: {explain(error, content)}; {_NAME} is {FORMAT.needs}.") from None


def _decode(content: bytes) -> list[_Entry]:
    try:
        return msgspec.json.decode(content, type=list[_Entry])
    except msgspec.DecodeError:
        # Texts from the web may have half of a surrogate pair, which msgspec refuses.
        return msgspec.json.decode(replace_lone_surrogates(content), type=list[_Entry])


def _usable(entries: list[_Entry], tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """Yield the prompt and the reply length of each conversation that is neither too short nor too long."""
    prompts = [each.conversations[0].value for each in entries]
    lengths = tokenizer.count_many(prompts)
    replies = tokenizer.count_many([each.conversations[1].value for each in entries])
    for prompt, length, reply in zip(prompts, lengths, replies, strict=True):
        if min(length, reply) >= _MIN_TOKENS and length <= _MAX_PROMPT_TOKENS and length + reply <= _MAX_TOKENS:
            yield prompt, reply


FORMAT = Format(
    name=_NAME,
    needs="a JSON list of objects with a list 'conversations' of messages with 'value'",
    matches=lambda _first: False,  # not one object per line
    read=ShareGpt,
    matches_file=_matches_file,
)
