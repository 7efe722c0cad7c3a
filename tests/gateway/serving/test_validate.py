"""The command line and gateway.yaml; `gateway validate` checks the resource file together with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.gateway import COMMAND_LINE, load_config
from penstock.cli.main import main
from penstock.settings.parse import parse
from support.gateway_process import keyword, resources


def test_options_override_the_configured_address(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("listen: {host: 127.0.0.1, port: 1, workers: 3}")
    words = ["--config", str(tmp_path / "gateway.yaml"), "--host", "0.0.0.0", "--port", "2"]
    listen = load_config(parse(COMMAND_LINE, words)).listen
    assert (listen.host, listen.port, listen.workers) == ("0.0.0.0", 2, 3)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"guardrails": {"max_lengths": {"words": 64}}}, None),
        ({"guardrails": {"max_lengths": {"wrods": 64}}}, "names 'wrods', which is not a guardrail"),
        ({"listen": {"prot": 1}}, "listen.prot is not a setting"),
        ({"listen": {"tls_cert": "none.pem", "tls_key": "none.pem"}}, "none.pem cannot be read"),
        ({"ledger": {"url": "sqlite:///no/such/folder/usage.db"}}, "no/such/folder, which does not exist"),
    ],
)
def test_errors_in_the_configuration_are_reported(
    tmp_path: Path, config: dict[str, object], error: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resources.yaml").write_text(
        json.dumps(resources("http://127.0.0.1:1", guardrails=[keyword("words", "x")]))
    )
    (tmp_path / "gateway.yaml").write_text(json.dumps(config))
    paths = (str(tmp_path / "resources.yaml"), "--config", str(tmp_path / "gateway.yaml"))
    status = main(["gateway", "validate", *paths])
    assert (status, error is None or error in capsys.readouterr().err) == (0 if error is None else 2, True)
