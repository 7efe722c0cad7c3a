"""Changes of gateway.yaml and of the TLS files, as the main process notices them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.gateway.resources.config import GatewayConfig, ListenConfig
from penstock.gateway.serving import config_watch
from penstock.gateway.serving.runtime import Runtime
from penstock.gateway.serving.server import Gateway
from penstock.gateway.serving.worker_pool import WorkerPool


class Pool(WorkerPool):
    """Counts how often its workers are replaced."""

    def __init__(self) -> None:
        self.replacements = 0

    def replace_all(self) -> bool:
        self.replacements += 1
        return True


def test_certificate_that_a_new_configuration_names_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(certificate: str | None) -> GatewayConfig:
        path = None if certificate is None else str(tmp_path / certificate)
        return GatewayConfig(listen=ListenConfig(port=0, status_port=0, tls_cert=path, tls_key=path))

    monkeypatch.setattr(config_watch, "CHECK_S", 0.0)
    monkeypatch.setattr(Gateway, "_check_files", lambda *_: None)
    path = tmp_path / "gateway.yaml"
    loaded = config(None)
    gateway = Gateway("resources.yaml", loaded, load_config=lambda: loaded, config_path=str(path))
    runtime, pool = Runtime.create(gateway.config), Pool()

    def apply() -> int:
        while gateway._config_watch.changed():
            gateway._apply_config(runtime, pool)
        return pool.replacements

    try:
        assert apply() == 0
        path.write_text("listen: {tls_cert: a.pem, tls_key: a.pem}")
        (tmp_path / "a.pem").write_text("first")
        loaded = config("a.pem")
        gateway._config_watch.changed()  # the first check of a change: the file may still be being written
        assert apply() == 1
        (tmp_path / "a.pem").write_text("renewed certificate")
        gateway._config_watch.changed()
        assert apply() == 2
        assert apply() == 2
    finally:
        runtime.remove()
        gateway._listeners.close_all()
