"""Creates the endpoint of a name. The names are in `settings.endpoint_types`, because the flag table needs them."""

from __future__ import annotations

from penstock.endpoints.base import Endpoint
from penstock.settings.endpoint_types import BUILTIN, load_endpoint
from penstock.settings.schema import EndpointSettings

__all__ = ["BUILTIN", "endpoint"]


def endpoint(name: str, settings: EndpointSettings | None = None) -> Endpoint:
    """Return a new endpoint. If it has a method `configure`, call it with the settings, if there are any."""
    loaded: Endpoint = load_endpoint(name)
    configure = getattr(loaded, "configure", None)
    if configure is not None and settings is not None:
        configure(settings)
    return loaded
