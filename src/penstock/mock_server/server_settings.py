"""The settings of the server process: its address, its log and its parent process."""

from __future__ import annotations

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8000
    """0 means any free port."""
    log: str | None = None
    log_writes: bool = False
    log_hash: bool = False
    parent: int = 0
    """The process id of the parent, with which the server ends; 0 means none."""
    parent_thread: bool = False
    """The parent started the server from its main thread, so PR_SET_PDEATHSIG may be used."""
