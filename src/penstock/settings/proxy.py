"""Chooses the proxy for a URL: the one of the flag or, on request, that of the environment."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings
from penstock.settings.urls import normalize_urls

__all__ = ["Proxy", "parse_proxy", "proxy_for"]


class Proxy(NamedTuple):
    host: str
    port: int
    authorization: str
    """Value of the Proxy-Authorization header, or empty."""


def parse_proxy(text: str, source: str) -> Proxy:
    """Raise `UserError` unless the text is the URL of an HTTP proxy. `source` begins the message."""
    (url,), credential = normalize_urls([text], source)
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path or parts.query:
        raise UserError(f"{source} must be the address of an HTTP proxy, like http://proxy.example:3128.")
    return Proxy(parts.hostname or "", parts.port or 80, credential or "")


def proxy_for(settings: EndpointSettings, parts: SplitResult) -> Proxy | None:
    """Return the proxy for a URL, or None for a direct connection."""
    if settings.proxy is not None:
        return parse_proxy(settings.proxy.reveal(), "--proxy")
    if not settings.trust_env:
        return None
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    text = proxies.get(parts.scheme) or proxies.get("all")
    if not text or proxy_bypass_environment(parts.netloc.rpartition("@")[2], proxies):
        return None
    return parse_proxy(text, f"The environment variable {parts.scheme.upper()}_PROXY")
