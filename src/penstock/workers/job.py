"""What a worker must know: computed once by the parent, the same for every worker."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from penstock import __version__
from penstock.errors import UserError
from penstock.schedule.phases import PhasePlan
from penstock.secrets import redact_url
from penstock.settings.schema import EndpointSettings
from penstock.wire.connection import Origin
from penstock.wire.http1 import request_head
from penstock.wire.pool import resolve
from penstock.wire.tls import client_context

__all__ = ["Job", "Target", "targets"]


_OWN = (("X-Request-ID", 0), ("X-Correlation-ID", 1), ("X-Session-Affinity", 1), ("Content-Length", 2))


class Target(NamedTuple):
    url: str
    """As it may be shown."""
    origin: Origin
    head: bytes
    """The request head up to the headers that differ from request to request."""
    own: str
    """Those, and the blank line: a format for the request's id, the conversation's and the length of the body."""


class Job(NamedTuple):
    log: str
    endpoint: str
    settings: EndpointSettings
    files: tuple[str, ...]
    """The user's files in which bodies lie."""
    targets: tuple[Target, ...]
    phases: tuple[PhasePlan, ...]
    sampling: Literal["sequential", "shuffle", "random"]
    seed: int
    timeout_ns: int
    reuse: bool
    open_ahead: int
    """Connections to open before the first request, over all workers and urls."""
    epoch: int


def join(base: str, path: str) -> str:
    """Base and path with what they share taken once: `…/v1` and `/v1/chat/completions` meet at `/v1`. Without a path the
    base is left as it is."""
    if not path:
        return base or "/"
    base = base.rstrip("/")
    parts = [part for part in path.split("/") if part]
    have = [part for part in base.split("/") if part]
    for overlap in range(min(len(parts), len(have)), 0, -1):
        if have[-overlap:] == parts[:overlap]:
            parts = parts[overlap:]
            break
    return "/".join([base, *parts]) or "/"


def targets(settings: EndpointSettings, path: str) -> tuple[Target, ...]:
    """Where to send: names resolved, heads rendered. One sentence for a host that cannot be found."""
    given = {name.lower(): value.reveal() for name, value in settings.headers}
    ours = [
        ("User-Agent", f"penstock/{__version__}"),
        ("Accept", "text/event-stream" if settings.streaming else "application/json"),
        ("Content-Type", "application/json"),
    ]
    headers = [(name, value) for name, value in ours if name.lower() not in given]
    headers += [(name, value.reveal()) for name, value in settings.headers if name.lower() != "host"]
    if settings.api_key is not None:
        headers.append(("Authorization", f"Bearer {settings.api_key.reveal()}"))
    own = "".join(f"{name}: {{{place}}}\r\n" for name, place in _OWN if name.lower() not in given) + "\r\n"
    context: ssl.SSLContext | None = None
    found = []
    for url in settings.urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        secure = parts.scheme == "https"
        if secure and context is None:
            context = _tls(settings.verify_tls)
        port = parts.port or (443 if secure else 80)
        origin = _reachable(host, port, context if secure else None, url)
        target = join(parts.path, path)
        if parts.query:
            target += f"?{parts.query}"
        netloc = given.get("host") or parts.netloc.rpartition("@")[2]
        found.append(Target(redact_url(url), origin, request_head("POST", target, netloc, headers), own))
    return tuple(found)


def _tls(verify: bool) -> ssl.SSLContext:
    """The system ignores a file of certificates that it cannot read, and the server's certificate would be blamed."""
    context = client_context(verify)
    path = os.environ.get("SSL_CERT_FILE")
    if verify and path:
        try:
            context.load_verify_locations(path)
        except OSError as error:
            why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise UserError(f"SSL_CERT_FILE names {path}, which cannot be read: {why}.") from None
    return context


def _reachable(host: str, port: int, context: ssl.SSLContext | None, url: str) -> Origin:
    """The first address that answers; when none does, the first one, and the run will say what is wrong with it."""
    try:
        origins = resolve(host, port, context)
    except (OSError, UnicodeError):
        raise UserError(f"The host '{host}' of {redact_url(url)} cannot be found; check the --url.") from None
    if len(origins) == 1:
        return origins[0]
    for origin in origins:
        with socket.socket(origin.family, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(origin.address)
            except OSError:
                continue
            return origin
    return origins[0]
