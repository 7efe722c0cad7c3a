"""Changes of gateway.yaml and of the TLS files while the gateway runs."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import msgspec

from penstock.gateway.resources.config import GatewayConfig

CHECK_S = 0.2

_FIXED: Final = ("host", "port", "status_host", "status_port", "workers")
"""Settings in `listen` that the main process uses when it starts."""

FileSignature = tuple[int, int, int] | None
"""Modification time, size and inode number of a file; None if it is missing."""


class ConfigWatch:
    """Notices when gateway.yaml, the certificate or its key changes."""

    def __init__(self, path: str | None, config: GatewayConfig) -> None:
        self._path = path
        self._paths = self._watched(config)
        self._applied = self._seen = self._signature()
        self._next_check = 0.0

    def changed(self) -> bool:
        """Return True once after a change, when two checks have found the same files: they may still be being written."""
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_S
        seen, self._seen = self._seen, self._signature()
        if self._seen == self._applied or self._seen != seen:
            return False
        self._applied = self._seen
        return True

    def files_changed(self, config: GatewayConfig) -> bool:
        """Return whether the TLS files have changed since the last call, and watch those of the new configuration."""
        before, tls_before = self._paths, self._tls
        self._paths = self._watched(config)
        self._applied = self._seen = self._signature()
        return before != self._paths or tls_before != self._tls

    def _watched(self, config: GatewayConfig) -> tuple[str, ...]:
        tls = (config.listen.tls_cert, config.listen.tls_key)
        self._tls = tuple(file_signature(path) for path in tls if path is not None)
        return tuple(path for path in (self._path, *tls) if path is not None)

    def _signature(self) -> tuple[FileSignature, ...]:
        return tuple(map(file_signature, self._paths))


def file_signature(path: str) -> FileSignature:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


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
