"""`gateway`: callers in front, providers behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.cli.arguments import Arguments
from penstock.errors import UserError
from penstock.suggest import did_you_mean

if TYPE_CHECKING:
    from penstock.gateway.serving.server import Gateway

__all__ = ["run"]

_ABOUT = """\
Serve language models behind caller keys, aliases, guardrails, limits and a usage ledger.
"""
_USAGE = """\
{program} gateway --resources FILE [--config FILE]
       {program} gateway --demo [--port PORT]
       {program} gateway validate FILE
"""
_MORE = """\
`validate FILE` reads a resource file and prints every problem in it; its status is 0 when there is none, 2 when there is.

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
SUBCOMMAND = "validate"


def run(words: list[str], program: str) -> int:
    if {"--help", "-h"} & set(words):
        words = ["--help"]
    if words and words[0] == SUBCOMMAND:
        return _validate(words[1:], program)
    if words and not words[0].startswith("-"):
        hint = did_you_mean(words[0], [SUBCOMMAND], f"see `{program} gateway --help`.")
        raise UserError(f"The gateway has no command {words[0]!r}; {hint}")
    given = arguments(program).read(words)
    port = None if given.port is None else _port(given.port)
    if given.demo:
        if given.resources is not None:
            raise UserError("--demo brings its own resources; leave out --resources.")
        from penstock.gateway.serving.demo import demo

        return demo(given.config, port, announce)
    if given.resources is None:
        raise UserError(f"Name a resource file: `{program} gateway --resources resources.yaml`, or try --demo.")
    return _serve(given.resources, given.config, port)


def arguments(program: str) -> Arguments:
    made = Arguments(program, "gateway", _ABOUT, _MORE, _USAGE)
    made.add_argument(
        "--resources",
        metavar="FILE",
        type=os.path.expanduser,
        help="provider keys, models, caller keys, guardrails and limits (format version 1)",
    )
    made.add_argument(
        "--config",
        metavar="FILE",
        type=os.path.expanduser,
        help="listeners, workers, timeouts, ledger: what has a default and is not in the resource file",
    )
    made.add_argument("--port", metavar="PORT", help="listen on another port than the configuration's")
    made.add_argument(
        "--demo", action="store_true", help="start in front of a mock model, with a key made for the occasion"
    )
    return made


def _serve(resources: str, config_path: str | None, port: int | None) -> int:
    import msgspec

    from penstock.gateway.resources.config_file import load_config
    from penstock.gateway.serving.server import Gateway

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
        raise UserError(f"Name one resource file: `{program} gateway validate resources.yaml`.")
    from penstock.gateway.resources.file import load_resources
    from penstock.gateway.serving.reload import check_guardrails, counts_text

    snapshot = check_guardrails(load_resources(words[0], os.environ))
    print(f"{words[0]} is valid: {counts_text(snapshot)}.")
    return 0


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise UserError(f"--port {text} is not a port from 0 to 65535.")
    return int(text)
