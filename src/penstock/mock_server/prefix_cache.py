"""A simulated prefix cache: the prompt tokens that a model server would not compute again.

As in vLLM, a block is a fixed number of tokens, its identity includes all tokens before it, only full blocks are cached,
and the last token of a prompt is always computed. Blocks are cached when the request begins to be processed. The least
recently used blocks are dropped first, and of one prompt those at its end. Tokens of replies are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence

from penstock.mock_server.prompt_tokens import estimate_tokens, token_ends


class PromptBlocks:
    """The full blocks of a prompt, each as a hash of all tokens up to its end."""

    def __init__(self, block_size: int, model: str) -> None:
        self.hashes: list[int] = []
        self.tokens = 0
        self._block_size = block_size
        self._parent = hash(model)
        self._pieces: list[Hashable] = []
        """The content of the block that is not full."""
        self._room = block_size
        """The number of tokens that this block lacks."""

    def copy(self) -> PromptBlocks:
        other = PromptBlocks(self._block_size, "")
        other.hashes, other.tokens = self.hashes.copy(), self.tokens
        other._parent, other._pieces, other._room = self._parent, self._pieces.copy(), self._room
        return other

    def add_text(self, role: str | None, text: str | None) -> None:
        if text:
            self._add(role, text, estimate_tokens(text), token_ends(text))

    def add_token_ids(self, ids: Iterable[int]) -> None:
        content = tuple(ids)
        self._add(None, content, len(content), lambda k: k)

    def add_opaque(self, identity: Hashable, tokens: int) -> None:
        """Add tokens without a text, such as those of an image."""
        self._add(identity, (), tokens, lambda _: 0)

    def _add(self, label: Hashable, content: Sequence[object], tokens: int, end_of: Callable[[int], int]) -> None:
        self.tokens += tokens
        done = start = 0
        while tokens - done >= self._room:
            done += self._room
            end = end_of(done)
            self._pieces.append((label, content[start:end]))
            self._parent = hash((self._parent, *self._pieces))
            self.hashes.append(self._parent)
            self._pieces = []
            self._room = self._block_size
            start = end
        if done < tokens:
            self._pieces.append((label, content[start:]))
            self._room -= tokens - done


class PrefixCache:
    def __init__(self, capacity: int, block_size: int) -> None:
        """Create a cache of `capacity` blocks."""
        self.capacity = capacity
        self.block_size = block_size
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """The least recently used block first."""

    def clear(self) -> None:
        self._blocks.clear()

    def use(self, prompts: Iterable[PromptBlocks]) -> int:
        """Return how many tokens of these prompts are cached, and cache their blocks."""
        return sum(map(self._use, prompts))

    def _use(self, prompt: PromptBlocks) -> int:
        blocks = self._blocks
        cached = 0
        for block in prompt.hashes[: (prompt.tokens - 1) // self.block_size]:
            if block not in blocks:
                break
            cached += self.block_size
        for block in reversed(prompt.hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self.capacity:
            blocks.popitem(last=False)
        self.queried_tokens += prompt.tokens
        self.hit_tokens += cached
        return cached
