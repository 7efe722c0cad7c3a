"""Normalizes and checks base URLs, separates credentials from them, and chooses the proxy for a URL."""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from penstock.errors import UserError
from penstock.secrets import redact_url
from penstock.settings.schema import EndpointSettings

_MOCK = "mock://"


def normalize_urls(texts: list[str], spelling: str, *, keep_path: bool = False) -> tuple[tuple[str, ...], str | None]:
    """Return the URLs without userinfo, and the Authorization header made from it. With `keep_path`, no request path is
    appended, so a trailing slash is kept."""
    urls: list[str] = []
    credentials: set[str | None] = set()
    for text in texts:
        url, credential = _normal_url(text, spelling, keep_path)
        urls.append(url)
        credentials.add(credential)
    if len(credentials) > 1:
        raise UserError(f"{spelling} has URLs with different user names or passwords; use the same ones in all URLs.")
    return tuple(urls), credentials.pop()


def _normal_url(text: str, spelling: str, keep_path: bool) -> tuple[str, str | None]:
    if text[: len(_MOCK)].lower() == _MOCK:
        return _MOCK + text[len(_MOCK) :], None
    url = text if "://" in text else f"http://{text}"
    subject = f"{spelling} {redact_url(text)!r}"
    _check_visible(url, subject)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_port_or_host(url, subject) from None
    if parts.scheme not in ("http", "https"):
        raise UserError(f"{subject} must start with http://, https:// or mock://, not {parts.scheme}://.")
    if not parts.hostname:
        raise UserError(f"{subject} has no host; write it like http://localhost:8000.")
    if port == 0 or "," in parts.netloc:
        raise _bad_port_or_host(url, subject)
    if not parts.hostname.isascii():
        raise UserError(f"{subject} has a non-ASCII host name; write its ASCII form, which begins with xn--.")
    check_request_target(parts.path + parts.query, subject)
    if parts.fragment:
        raise UserError(f"{subject} has a fragment after '#', which is never sent to a server; leave it out.")
    host = parts.netloc.rpartition("@")[2]
    cleaned = parts._replace(netloc=host.removesuffix(":"), path=parts.path if keep_path else parts.path.rstrip("/"))
    return cleaned.geturl(), _credential(parts)


def check_request_target(text: str, subject: str) -> None:
    """Raise `UserError` unless the text is visible ASCII, which is all that a request line can carry."""
    _check_visible(text, subject)
    for char in text:
        if not char.isascii():
            raise UserError(f"{subject} contains {char!r}, which a request cannot carry; write it as {quote(char)}.")


def _check_visible(text: str, subject: str) -> None:
    if any(char.isspace() or not char.isprintable() for char in text):
        raise UserError(f"{subject} contains a space or a control character; write a space as %20.")


def _bad_port_or_host(url: str, subject: str) -> UserError:
    if "," in url.partition("://")[2].partition("/")[0]:
        return UserError(f"{subject} has a comma in its host name; separate several URLs by spaces.")
    return UserError(f"{subject} needs a host and, after a colon, a port from 1 to 65535.")


def _credential(parts: SplitResult) -> str | None:
    if "@" not in parts.netloc:
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()


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
