"""Redirects with status 307 or 308: the request that follows one has the same method and body.

Redirects within an origin are always followed. Redirects to another origin are followed on request, without the API key
and the headers of the user, which are meant for the first origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from penstock.errors import UserError
from penstock.settings.endpoint_types import load_endpoint
from penstock.settings.schema import EndpointSettings
from penstock.wire.connection import Origin
from penstock.wire.exchange import Exchange, FollowedRedirect
from penstock.wire.pool import Pool
from penstock.workers.job import Target, proxy_headers, request_headers, resolve_origin

FOLLOWED = (307, 308)
MAX_REDIRECTS = 5
_FORWARDED = {"user-agent", "accept", "content-type"}
"""Headers that another origin gets, besides those that differ from request to request and those that the endpoint declares."""


class Hop(NamedTuple):
    pool: Pool
    data: bytes
    redirect: FollowedRedirect


class Redirects:
    """The redirects of one worker; `pools` are those of the targets, and `open_pool` adds one."""

    def __init__(
        self,
        settings: EndpointSettings,
        targets: Sequence[Target],
        pools: list[Pool],
        open_pool: Callable[[Origin], Pool],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._pools = pools
        self._open_pool = open_pool
        self._others: dict[tuple[str, str, int], tuple[Pool, Origin]] = {}

    def hop(self, exchange: Exchange, target: int) -> Hop | None:
        """Return the request that follows the redirect of an exchange, or None if it is not followed."""
        location = exchange.header(b"location")
        earlier = exchange.redirect
        hops = 1 if earlier is None else earlier.hops + 1
        if exchange.error is not None or hops > MAX_REDIRECTS or not location or not _is_visible(location):
            return None
        start = self._targets[target]
        method, request_target, _ = exchange.data.split(b" ", 2)
        current = urljoin(start.url, request_target.decode("latin-1")) if earlier is None else earlier.url
        url = urljoin(current, location.decode("ascii"))
        parts = urlsplit(url)
        same_origin = _origin(parts) == _origin(urlsplit(start.url))
        found = (self._pools[target], start.origin) if same_origin else self._other(parts)
        if found is None:
            return None
        pool, origin = found
        absolute_form = origin.proxy and origin.tls is None
        path = parts._replace(fragment="") if absolute_form else parts._replace(scheme="", netloc="", fragment="")
        head, _, body = exchange.data.partition(b"\r\n\r\n")
        if same_origin:
            lines = start.head.split(b"\r\n")[1:-1]
        else:
            lines = [f"{name}: {value}".encode() for name, value in (("Host", parts.netloc), *proxy_headers(origin))]
        given = {line.partition(b":")[0] for line in lines}
        lines += [line for line in self._forwarded_lines(head) if line.partition(b":")[0] not in given]
        request_line = b"%b %b HTTP/1.1" % (method, (path.geturl() or "/").encode())
        data = b"\r\n".join([request_line, *lines]) + b"\r\n\r\n" + body
        first = exchange if earlier is None else earlier.first
        return Hop(pool, data, FollowedRedirect(first, hops, url))

    @cached_property
    def _forwarded(self) -> set[str]:
        declared = {name.lower() for name, _ in load_endpoint(self._settings.type).declaration.headers}
        given = {name.lower() for name, _ in self._settings.headers}
        return _FORWARDED | (declared - given) | {name.lower() for name in request_headers(self._settings)}

    def _forwarded_lines(self, head: bytes) -> list[bytes]:
        lines = head.split(b"\r\n")[1:]
        return [line for line in lines if line.partition(b":")[0].decode("latin-1").lower() in self._forwarded]

    def _other(self, parts: SplitResult) -> tuple[Pool, Origin] | None:
        """Return another origin and its pool. Its name is resolved here, once, which blocks the event loop."""
        key = _origin(parts)
        if not self._settings.cross_origin_redirects or key is None:
            return None
        if key not in self._others:
            try:
                origin, _ = resolve_origin(self._settings, parts)
            except UserError:
                return None
            self._others[key] = self._open_pool(origin), origin
        return self._others[key]


def _is_visible(location: bytes) -> bool:
    return all(33 <= byte <= 126 for byte in location)


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (KeyError, ValueError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and "@" not in parts.netloc else None
