"""What a worker must know: computed once by the parent, the same for every worker."""

from __future__ import annotations

import socket
import ssl
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from penstock import __version__
from penstock.errors import UserError
from penstock.plan.phases import PhasePlan
from penstock.settings.model import EndpointSettings
from penstock.wire.connection import Origin
from penstock.wire.http1 import request_head
from penstock.wire.pool import resolve
from penstock.wire.tls import client_context

__all__ = ["Job", "Target", "targets"]


class Target(NamedTuple):
    url: str
    origin: Origin
    head: bytes
    """The request head up to the headers that differ from request to request."""


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
    headers = [("User-Agent", f"penstock/{__version__}")]
    headers += [(name, value.reveal()) for name, value in settings.headers]
    if settings.api_key is not None:
        headers.append(("Authorization", f"Bearer {settings.api_key.reveal()}"))
    named = {name.lower() for name, _ in headers}
    if "accept" not in named:
        headers.append(("Accept", "text/event-stream" if settings.streaming else "application/json"))
    if "content-type" not in named:
        headers.append(("Content-Type", "application/json"))
    context: ssl.SSLContext | None = None
    found = []
    for url in settings.urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        secure = parts.scheme == "https"
        if secure and context is None:
            context = client_context(settings.verify_tls)
        port = parts.port or (443 if secure else 80)
        origin = _reachable(host, port, context if secure else None, url)
        target = join(parts.path, path)
        if parts.query:
            target += f"?{parts.query}"
        netloc = parts.netloc.rpartition("@")[2]
        found.append(Target(url, origin, request_head("POST", target, netloc, headers)))
    return tuple(found)


def _reachable(host: str, port: int, context: ssl.SSLContext | None, url: str) -> Origin:
    """The first address that answers; when none does, the first one, and the run will say what is wrong with it."""
    try:
        origins = resolve(host, port, context)
    except (OSError, UnicodeError):
        raise UserError(f"The host '{host}' of {url} cannot be found; check the --url.") from None
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
