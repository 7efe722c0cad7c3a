"""The endpoints by name. Another package can add one in the entry point group `penstock.endpoints`: the object is a class
without constructor arguments that fits `endpoints.base.Endpoint`."""

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
    """Return a new endpoint. If it has a method `configure`, call it with the settings, if there are any."""
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        return _configure(getattr(import_module(module), attribute)(), settings)
    for plugin in entry_points(group="penstock.endpoints", name=name):
        return _configure(_load(plugin), settings)
    raise UserError(f"There is no endpoint type '{name}'; choose from {', '.join(BUILTIN)}.")


def _load(plugin: EntryPoint) -> Endpoint:
    """Load a plugin; any exception of the other package is a user error."""
    try:
        loaded: Endpoint = plugin.load()()
    except Exception as error:
        package = plugin.dist.name if plugin.dist is not None else plugin.value
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"The endpoint type '{plugin.name}' of the package {package} cannot be loaded ({reason}); "
            "repair or remove the package."
        ) from error
    return loaded


def _configure(endpoint: Endpoint, settings: EndpointSettings | None) -> Endpoint:
    configure = getattr(endpoint, "configure", None)
    if configure is not None and settings is not None:
        configure(settings)
    return endpoint
