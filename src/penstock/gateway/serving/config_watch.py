"""Changes of files while the gateway runs: of the resource file, gateway.yaml and the files that they name."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.gateway.resources.config import GatewayConfig

CHECK_S = 0.2

_FIXED: Final = ("host", "port", "status_host", "status_port", "workers")
"""Settings in `listen` that the main process uses when it starts."""

FileSignature = tuple[int, int, int] | None
"""Modification time, size and inode number of a file; None if it is missing."""


def file_signature(path: str) -> FileSignature:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class FileWatch:
    """Notices when files change."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._next_check = 0.0
        self.accept()

    def accept(self) -> None:
        """Regard the current contents of the files as unchanged."""
        self._applied = self._seen = tuple(map(file_signature, self._paths))

    def changed(self) -> bool:
        """Return True once after a change, when two checks have found the same files: they may still be being written."""
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_S
        seen, self._seen = self._seen, tuple(map(file_signature, self._paths))
        if self._seen == self._applied or self._seen != seen:
            return False
        self._applied = self._seen
        return True

    def watch_besides_first(self, paths: Sequence[str]) -> None:
        """Watch these files instead of those after the first one."""
        if self._paths[1:] != tuple(paths):
            self._paths = (self._paths[0], *paths)
            self._applied = self._seen = (self._applied[0], *map(file_signature, paths))


class ConfigWatch(FileWatch):
    """Notices when gateway.yaml, the certificate or its key changes."""

    def __init__(self, path: str | None, config: GatewayConfig) -> None:
        self._path = path
        self._tls: tuple[FileSignature, ...] = ()
        super().__init__()
        self.files_changed(config)

    def files_changed(self, config: GatewayConfig) -> bool:
        """Return whether the TLS files have changed since the last call, and watch those of the new configuration."""
        before = self._paths, self._tls
        tls = [path for path in (config.listen.tls_cert, config.listen.tls_key) if path is not None]
        self._tls = tuple(map(file_signature, tls))
        self._paths = tuple([self._path, *tls] if self._path is not None else tls)
        self.accept()
        return before != (self._paths, self._tls)


def applicable_config(current: GatewayConfig, loaded: GatewayConfig) -> tuple[GatewayConfig, list[str]]:
    """Return the new configuration without the changes that need a restart, and the names of the latter."""
    kept: dict[str, Any] = {name: getattr(current.listen, name) for name in _FIXED}
    fixed = [f"listen.{name}" for name in _FIXED if _differs(name, kept[name], getattr(loaded.listen, name))]
    if loaded.ledger != current.ledger:
        fixed.append("ledger")
    listen = msgspec.structs.replace(loaded.listen, **kept)
    return msgspec.structs.replace(loaded, listen=listen, ledger=current.ledger), fixed


def _differs(name: str, current: object, loaded: object) -> bool:
    if name == "host":
        return False  # `current` is the resolved address
    return loaded not in (current, 0)  # port 0 chose the current one
