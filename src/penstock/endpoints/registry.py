"""The dialects by name. A new one is a file here and a line in the table; a plugin joins through the entry point group
`penstock.endpoints` (the object is a class without arguments that fits `endpoints.base.Endpoint`)."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from penstock.endpoints.base import Endpoint
from penstock.errors import UserError

__all__ = ["BUILTIN", "endpoint"]

BUILTIN = {
    "chat": "penstock.endpoints.chat:Chat",
    "completions": "penstock.endpoints.completions:Completions",
}


def endpoint(name: str) -> Endpoint:
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        found: Endpoint = getattr(import_module(module), attribute)()
        return found
    for plugin in entry_points(group="penstock.endpoints", name=name):
        joined: Endpoint = plugin.load()()
        return joined
    raise UserError(f"There is no endpoint type '{name}'; choose from {', '.join(BUILTIN)}.")
