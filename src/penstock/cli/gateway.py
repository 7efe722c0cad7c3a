"""`gateway`: callers in front, providers behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.gateway.server import Gateway

__all__ = ["run"]

_HELP = """\
Usage: {program} gateway --resources FILE [--config FILE]
       {program} gateway --demo [--port PORT]
       {program} gateway validate FILE

Serve language models behind caller keys, aliases, guardrails, limits and a usage ledger.

  --resources FILE   provider keys, models, caller keys, guardrails and limits (format version 1)
  --config FILE      listeners, workers, timeouts, ledger: what has a default and is not in the resource file
  --port PORT        listen on another port than the configuration's
  --demo             start in front of a mock model, with a key made for the occasion
  validate FILE      read a resource file, print every problem in it; status 0 when there is none, 2 when there is

A changed resource file is taken without a restart, at once or on SIGHUP; one with a problem is not taken at all.
SIGTERM drains. Status and metrics: /readyz, /status/config and /metrics on a port of their own (9090).

Examples
  Try it on this machine:
    {program} gateway --demo
  Check a file before it is used:
    {program} gateway validate resources.yaml
  Serve:
    {program} gateway --resources resources.yaml --config gateway.yaml
"""


def run(words: list[str], program: str) -> int:
    if "--help" in words or "-h" in words:
        sys.stdout.write(_HELP.format(program=program))
        return 0
    if words and words[0] == "validate":
        return _validate(words[1:], program)
    options = _options(words, program)
    port = _port(options["--port"]) if "--port" in options else None
    if "--demo" in options:
        if "--resources" in options:
            raise UserError("--demo brings its own resources; leave out --resources.")
        from penstock.gateway.demo import demo

        return demo(options.get("--config"), port, announce)
    if "--resources" not in options:
        raise UserError(f"name a resource file: `{program} gateway --resources resources.yaml`, or try --demo.")
    return _serve(options["--resources"], options.get("--config"), port)


def _serve(resources: str, config_path: str | None, port: int | None) -> int:
    import msgspec

    from penstock.gateway.config_file import load_config
    from penstock.gateway.server import Gateway

    config = load_config(config_path)
    if port is not None:
        config = msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, port=port))
    return Gateway(os.path.abspath(resources), config).run(announce)


def announce(gateway: Gateway, invitation: str = "") -> None:
    from penstock import __version__

    listen = gateway.config.listen
    scheme = "https" if listen.tls_cert else "http"
    workers = f"{listen.workers} workers" if listen.workers > 1 else "1 worker"
    print(
        f"Penstock {__version__} gateway on {scheme}://{_shown(listen.host)}:{listen.port} ({workers}); "
        f"status and metrics on http://{_shown(listen.status_host)}:{listen.status_port}"
    )
    if invitation:
        print(invitation)
    sys.stdout.flush()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _validate(words: list[str], program: str) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError(f"name one resource file: `{program} gateway validate resources.yaml`.")
    from penstock.gateway.reload import checked, counts
    from penstock.gateway.resource_file import load_resources

    snapshot = checked(load_resources(words[0], os.environ))
    found = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts(snapshot).items())
    print(f"{words[0]} is valid: {found}.")
    return 0


def _options(words: list[str], program: str) -> dict[str, str]:
    known = {"--resources": True, "--config": True, "--port": True, "--demo": False}
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in known:
            raise UserError(f"{word!r} is not an option of `{program} gateway`; `{program} gateway --help` lists them.")
        if known[name] and not equals:
            value = next(rest, "")
        if known[name] and not value:
            raise UserError(f"{name} needs a value.")
        found[name] = value
    return found


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise UserError(f"--port {text} is not a port from 0 to 65535.")
    return int(text)
