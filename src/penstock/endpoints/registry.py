"""The dialects by name. A new one is a file here and a line in the table; a plugin joins through the entry point group
`penstock.endpoints` (the object is a class without arguments that fits `endpoints.base.Endpoint`)."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from penstock.endpoints.base import Endpoint
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

__all__ = ["BUILTIN", "endpoint"]

BUILTIN = {
    "chat": "penstock.endpoints.chat:Chat",
    "completions": "penstock.endpoints.completions:Completions",
    "responses": "penstock.endpoints.responses:Responses",
    "raw": "penstock.endpoints.raw:Raw",
    "template": "penstock.endpoints.template:Template",
}


def endpoint(name: str, settings: EndpointSettings | None = None) -> Endpoint:
    """The dialect. One that has a method `configure` is told the settings, where the caller knows them."""
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        return _configured(getattr(import_module(module), attribute)(), settings)
    for plugin in entry_points(group="penstock.endpoints", name=name):
        return _configured(_loaded(plugin), settings)
    raise UserError(f"There is no endpoint type '{name}'; choose from {', '.join(BUILTIN)}.")


def _loaded(plugin: EntryPoint) -> Endpoint:
    """Another package may raise anything, and that is not a fault of Penstock."""
    try:
        found: Endpoint = plugin.load()()
    except Exception as error:
        package = plugin.dist.name if plugin.dist is not None else plugin.value
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"The endpoint type '{plugin.name}' of the package {package} cannot be loaded ({why}); mend or remove the package."
        ) from error
    return found


def _configured(found: Endpoint, settings: EndpointSettings | None) -> Endpoint:
    configure = getattr(found, "configure", None)
    if configure is not None and settings is not None:
        configure(settings)
    return found
