"""Where the server listens, what it logs, and beside whom it runs."""

from __future__ import annotations

import msgspec

__all__ = ["ServerSettings"]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free one."""
    log: str | None = None
    log_writes: bool = False
    log_hash: bool = False
    parent: int = 0
    """The process beside which it runs, and with which it ends; 0 is none."""
    parent_thread: bool = False
    """That process started it from its main thread, so Linux may end it when that thread ends."""
