"""Markers in prompts that keep a server from finding them in its prefix cache (`--cache-bust`)."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from penstock.datasets.conversation import Turn

IN_SYSTEM_PROMPT = ("system_prefix", "system_suffix", "warmup_isolation_system")
_WARMUP_ONLY = ("warmup_isolation_system", "warmup_isolation_first_turn")
_AT_THE_END = ("system_suffix", "first_turn_suffix")


class CacheBust(msgspec.Struct, frozen=True):
    target: str
    """A value of `--cache-bust`."""
    run: str
    """Differs between runs, so that the prompts of a run are not in the cache that an earlier run has filled."""

    def marker(self, phase: int, number: int, *, warmup: bool) -> str:
        """Return the marker of a conversation: the one with this number in the schedule of its phase. It may be empty."""
        if self.target in _WARMUP_ONLY:
            return "[warmup]" if warmup else ""
        return f"[rid:{sha256(f'{self.run} {phase} {number}'.encode()).hexdigest()[:12]}]"

    def mark_system(self, system: str | None, marker: str) -> str | None:
        """Return the system prompt of a conversation with its marker."""
        if system is None or self.target not in IN_SYSTEM_PROMPT:
            return system
        return self._join(system, marker)

    def mark_turn(self, turn: Turn, marker: str) -> Turn:
        """Return the first turn of a conversation with its marker."""
        if self.target in IN_SYSTEM_PROMPT or not turn.texts:
            return turn
        place = len(turn.texts) - 1 if self.target in _AT_THE_END else 0
        texts = list(turn.texts)
        texts[place] = self._join(texts[place], marker)
        return msgspec.structs.replace(turn, texts=tuple(texts))

    def _join(self, text: str, marker: str) -> str:
        if not marker:
            return text
        return f"{text}\n\n{marker}" if self.target in _AT_THE_END else f"{marker}\n\n{text}"
