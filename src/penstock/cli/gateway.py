"""`gateway`: serve models behind caller keys, guardrails and limits."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.plural import counted
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments

if TYPE_CHECKING:
    from penstock.gateway.resources.config import GatewayConfig
    from penstock.gateway.serving.server import Gateway

_OPTIONS = """
--resources FILE | path resources
    Resource file: provider keys, models, caller keys, guardrails and limits (format version 1).
--config FILE | path config
    Configuration file: listeners, workers, timeouts and ledger; every field has a default.
--port PORT | int port ge=0 le=65535
    Port to listen on, instead of the configured one; 0 chooses a free port.
--host ADDRESS | str host
    Address to listen on, instead of the configured one.
--take-over | bool take_over
    Take the port from the gateway that uses it. That one finishes its requests, and no connection is lost.
--demo | bool demo
    Serve a mock model with a new caller key.
"""
COMMAND_LINE = CommandLine(
    "gateway",
    "Serve language models behind caller keys, aliases, guardrails, limits and a usage ledger.",
    groups=options(_OPTIONS),
    usage=("--resources FILE [--config FILE]", "--demo [--port PORT]", "validate FILE [--config FILE]"),
    details="""\
`validate FILE` checks a resource file, with --config also the configuration, and prints every error.

The gateway reloads the resource file, the configuration and TLS certificates when they change or on SIGHUP. A file with
an error is rejected as a whole, and the previous one stays in use. On SIGTERM the gateway finishes its requests and
stops. A separate port (9090) serves /readyz, /status/config and /metrics.
""",
    examples=(
        ("Try it on this machine", "gateway --demo"),
        ("Check a resource file", "gateway validate resources.yaml"),
        ("Serve", "gateway --resources resources.yaml --config gateway.yaml"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    resources, path = map(parsed.values.get, ("resources", "config"))
    if parsed.values.get("demo"):
        if resources is not None:
            raise UserError("--demo has its own resources; leave out --resources.")
        require_gateway_packages()
        from penstock.gateway.serving.demo import demo

        status, message = demo(load_config(parsed), announce, keep=path is not None)
        print(f"{parsed.program} gateway: {message}", file=sys.stderr)
        return status
    if resources is None:
        raise UserError(f"Name a resource file: `{parsed.program} gateway --resources resources.yaml`, or try --demo.")
    require_gateway_packages()
    from penstock.gateway.serving.server import Gateway

    gateway = Gateway(
        os.path.abspath(resources),
        load_config(parsed),
        load_config=lambda: load_config(parsed),
        config_path=path,
        replace=bool(parsed.values.get("take_over")),
    )
    return gateway.run(announce)


def require_gateway_packages() -> None:
    require_extra("gateway", "The gateway", "aiohttp", "redis", "psycopg", "ahocorasick_rs", "regex")


def load_config(parsed: ParsedArguments) -> GatewayConfig:
    """Return the configuration with the options that override it."""
    import msgspec

    from penstock.gateway.resources import config_file

    config = config_file.load_config(parsed.values.get("config"))
    overridden = {name: parsed.values[name] for name in ("host", "port") if name in parsed.values}
    return msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, **overridden))


def announce(gateway: Gateway, instructions: str = "") -> None:
    from penstock import __version__

    listen = gateway.config.listen
    scheme = "https" if listen.tls_cert else "http"
    print(
        f"Penstock {__version__} gateway on {scheme}://{_url_host(listen.host)}:{listen.port} "
        f"({counted(listen.workers, 'worker')}); status and metrics on http://{_url_host(listen.status_host)}:{listen.status_port}"
    )
    if instructions:
        print(instructions)
    sys.stdout.flush()


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
