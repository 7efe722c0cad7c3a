"""`gateway --demo`: the gateway in front of the mock server, with a temporary key."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable

import msgspec

from penstock.errors import RunError, UserError
from penstock.gateway.ledger.ledger import open_ledger
from penstock.gateway.ledger.usage_table import UsageQuery
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.serving.server import Gateway
from penstock.mock_server.mock_process import MockProcess, parse_mock_url

ALIAS = "gpt-4o-prod"
UPSTREAM = "gpt-4o-mini-2024-07-18"
MOCK = "mock://?ttft=20&itl=5&tokens=40"
_KEY = "PENSTOCK_DEMO_KEY"


def demo(config: GatewayConfig, announce: Callable[[Gateway, str], None], *, keep: bool) -> tuple[int, str]:
    """Run the demo until a signal, and return its exit status with a closing message. `announce` gets instructions for
    trying it. All files are temporary, unless `keep`: then the ledger is that of the configuration."""
    key = f"sk-demo-{secrets.token_urlsafe(18)}"
    os.environ[_KEY] = key
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder, MockProcess(parse_mock_url(MOCK)) as mock:
        if not keep:
            config = _use_folder(config, folder)
        path = os.path.join(folder, "resources.yaml")
        with open(path, "w") as file:
            json.dump(_resources(mock.url), file)  # JSON is YAML
        began = time.time()
        status = Gateway(path, config).run(lambda gateway: announce(gateway, _instructions(gateway, key)))
        return status, _closing_message(_count_requests(config.ledger.url, began), kept=keep)


def _use_folder(config: GatewayConfig, folder: str) -> GatewayConfig:
    ledger = msgspec.structs.replace(
        config.ledger, url=f"sqlite:///{os.path.join(folder, 'usage.db')}", spool=os.path.join(folder, "spool")
    )
    listen = msgspec.structs.replace(config.listen, status_port=0)  # any free port: the default may be in use
    return msgspec.structs.replace(config, ledger=ledger, listen=listen)


def _resources(url: str) -> dict[str, object]:
    return {
        "_format_version": "1",
        "provider_keys": [
            {"display_name": "mock", "provider": "openai", "adapter": "openai", "api_key": "unused", "api_base": url}
        ],
        "models": [{"display_name": ALIAS, "provider": "openai", "model_name": UPSTREAM, "provider_key": "mock"}],
        "api_keys": [{"display_name": "demo", "key_env": _KEY, "allowed_models": ["*"]}],
    }


def _count_requests(url: str, since: float) -> int:
    """Return the number of requests in the ledger, or 0 if it cannot be read: that must not fail the demo."""
    try:
        ledger = open_ledger(url, read_only=True)
        try:
            return sum(row.requests for row in ledger.usage(UsageQuery(by=(), since=since)))
        finally:
            ledger.close()
    except (UserError, RunError):
        return 0


def _closing_message(requests: int, *, kept: bool) -> str:
    if not requests:
        return "the demo has ended; its ledger has no requests"
    served = "1 request was" if requests == 1 else f"{requests} requests were"
    return f"the demo has ended; {served} served, and its ledger {'is kept' if kept else 'was deleted'}"


def _instructions(gateway: Gateway, key: str) -> str:
    listen = gateway.config.listen
    scheme, insecure = ("https", "-k ") if listen.tls_cert else ("http", "")
    return f"""
Demo: the model {ALIAS} is served by a mock server. Try it:

curl -sS {insecure}-X POST "{scheme}://127.0.0.1:{listen.port}/v1/responses" \\
-H "Authorization: Bearer {key}" \\
-H "Content-Type: application/json" \\
-d '{{
"model": "{ALIAS}",
"input": "Say hello to the turbine."
}}'

Caller API key: {key}
Show the ledger: penstock usage --ledger {gateway.config.ledger.url}
Press Ctrl-C to stop."""
