"""`gateway validate`: check a resource file and a configuration."""

from __future__ import annotations

import os

from penstock.cli.gateway import require_gateway_packages
from penstock.errors import UserError
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

COMMAND_LINE = CommandLine(
    "gateway validate",
    "Read a resource file, and with --config also the configuration, and print every error in them.",
    groups=options("""
--config FILE | path config
    Configuration file with which the gateway will run.
"""),
    positionals=(Positional("FILE", "the resource file to check", "file"),),
    exit_statuses=(("0", "the files have no error"), ("2", "a file has errors or cannot be read")),
    examples=(
        ("Check a resource file", "gateway validate resources.yaml"),
        ("Check both files", "gateway validate resources.yaml --config gateway.yaml"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    require_gateway_packages()
    from penstock.gateway.ledger.ledger import check_url
    from penstock.gateway.resources.config_file import load_config
    from penstock.gateway.resources.file import load_resources
    from penstock.gateway.serving.reload import counts_text, unknown_guardrails
    from penstock.gateway.serving.tls import check_tls
    from penstock.gateway.storage.id_databases import check_id_url

    path = parsed.values["file"]
    config = load_config(parsed.values.get("config"))
    check_tls(config.listen)
    if "config" in parsed.values:
        check_url(config.ledger.url)
        check_id_url(config.responses.id_url)
    snapshot = load_resources(path, os.environ)
    if errors := unknown_guardrails(snapshot, config.guardrails):
        raise UserError("; ".join(errors) + ".")
    print(f"{path} is valid: {counts_text(snapshot)}.")
    return 0
