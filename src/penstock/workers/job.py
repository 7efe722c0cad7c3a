"""The job of a worker: what to send and where, the same for all workers of a run."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from penstock import __version__
from penstock.errors import UserError
from penstock.secrets import Secret, is_credential_header, redact_url
from penstock.settings.endpoint_types import DEFAULT, Declaration
from penstock.settings.schema import EndpointSettings
from penstock.settings.urls import proxy_for
from penstock.wire.connection import Origin
from penstock.wire.http1 import request_head
from penstock.wire.pool import resolve
from penstock.wire.tls import client_context


def request_headers(settings: EndpointSettings) -> dict[str, int]:
    """Return the headers that differ from request to request, with the argument of `Target.request_headers` for each."""
    names = {"X-Request-ID": 0, settings.session_header: 1, "X-Session-Affinity": 1, "Content-Length": 2}
    given = {name.lower() for name, _ in settings.headers}
    unique = {name.lower(): name for name in names}
    return {name: names[name] for lower, name in unique.items() if lower not in given}


class Target(NamedTuple):
    url: str
    """Without credentials."""
    origin: Origin
    head: bytes
    """The request head up to the headers that differ from request to request."""
    request_headers: str
    """Format of these headers and the blank line. Its arguments are the request id, the conversation id and the length of
    the body."""


class Job(NamedTuple):
    """Everything that a worker needs to start, as plain data that can be pickled. Pickling fails while a secret is in it: use
    `take_secrets` before, and give the secrets to the worker separately."""

    log: str
    settings: EndpointSettings
    files: tuple[str, ...]
    """Input files that bodies are read from."""
    sampling: Literal["sequential", "shuffle", "random"]
    seed: int
    preconnect: int
    """Connections to open before the first request, over all workers and URLs."""
    first_worker: int = 0
    """Number of the first worker in the log; not 0 if the run was resumed."""
    growing: bool = False
    """True if the input files are indexed while the run sends."""
    keep_replies: bool = False
    """Write the bytes of the replies to the log."""
    flush_ns: int = 500_000_000
    """Longest time for which records are buffered."""


class JobSecrets(NamedTuple):
    """The parts of a job that can contain credentials."""

    urls: tuple[str, ...]
    api_key: str | None
    headers: tuple[tuple[str, str], ...]
    proxy: str | None


def take_secrets(job: Job) -> tuple[Job, JobSecrets]:
    """Return the job without its secrets, and the secrets."""
    settings = job.settings
    secrets = JobSecrets(
        settings.urls,
        None if settings.api_key is None else settings.api_key.reveal(),
        tuple((name, value.reveal()) for name, value in settings.headers),
        None if settings.proxy is None else settings.proxy.reveal(),
    )
    public = msgspec.structs.replace(
        settings, urls=tuple(map(redact_url, settings.urls)), api_key=None, headers=(), proxy=None
    )
    return job._replace(settings=public), secrets


def restore_secrets(job: Job, secrets: JobSecrets) -> Job:
    settings = msgspec.structs.replace(
        job.settings,
        urls=secrets.urls,
        api_key=None if secrets.api_key is None else Secret(secrets.api_key),
        headers=tuple((name, Secret(value)) for name, value in secrets.headers),
        proxy=None if secrets.proxy is None else Secret(secrets.proxy),
    )
    return job._replace(settings=settings)


def join(base: str, path: str) -> str:
    """Join base and path, with segments that end the base and begin the path only once: `…/v1` and `/v1/chat/completions`
    share `/v1`. Without a path, return the base."""
    if not path:
        return base or "/"
    base = base.rstrip("/")
    segments = [segment for segment in path.split("/") if segment]
    base_segments = [segment for segment in base.split("/") if segment]
    for overlap in range(min(len(segments), len(base_segments)), 0, -1):
        if base_segments[-overlap:] == segments[:overlap]:
            segments = segments[overlap:]
            break
    return "/".join([base, *segments]) or "/"


def fixed_headers(settings: EndpointSettings, declaration: Declaration) -> list[tuple[str, str]]:
    """Return the headers that all requests have in common, including a Host that the user gives."""
    given = {name.lower() for name, _ in settings.headers}
    defaults = [
        ("User-Agent", f"penstock/{__version__}"),
        ("Accept", "text/event-stream" if settings.streaming else declaration.accept),
        ("Content-Type", declaration.content_type),
        *declaration.headers,
    ]
    headers = [(name, value) for name, value in defaults if name.lower() not in given]
    headers += [(name, value.reveal()) for name, value in settings.headers]
    if settings.api_key is not None:
        headers.append((declaration.credential_header, declaration.credential.format(settings.api_key.reveal())))
    return headers


def hidden_headers(settings: EndpointSettings, declaration: Declaration) -> set[str]:
    """Return the names, in lower case, of the headers whose values appear in no output: those of credentials."""
    given = (name.lower() for name, value in settings.headers if is_credential_header(name, value.reveal()))
    return {"authorization", "proxy-authorization", "x-session-affinity", declaration.credential_header.lower(), *given}


def targets(settings: EndpointSettings, path: str, declaration: Declaration = DEFAULT) -> tuple[Target, ...]:
    """Resolve the host of each URL and render the request heads; raise UserError if a host cannot be found."""
    given = {name.lower(): value.reveal() for name, value in settings.headers}
    headers = [(name, value) for name, value in fixed_headers(settings, declaration) if name.lower() != "host"]
    differing = "".join(f"{name}: {{{n}}}\r\n" for name, n in request_headers(settings).items()) + "\r\n"
    context: ssl.SSLContext | None = None
    result = []
    for url in settings.urls:
        parts = urlsplit(url)
        origin, context = resolve_origin(settings, parts, context)
        target = join(parts.path, path)
        if origin.proxy and origin.tls is None:
            target = f"http://{parts.netloc}{target}"
        if parts.query:
            target += f"?{parts.query}"
        netloc = given.get("host") or parts.netloc.rpartition("@")[2]
        result.append(
            Target(
                redact_url(url),
                origin,
                request_head(declaration.method, target, netloc, [*headers, *proxy_headers(origin)]),
                differing,
            )
        )
    return tuple(result)


def resolve_origin(
    settings: EndpointSettings, parts: SplitResult, context: ssl.SSLContext | None = None
) -> tuple[Origin, ssl.SSLContext | None]:
    """Resolve the host of a URL. Return its origin and the TLS context, which several origins can share."""
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    if secure and context is None:
        context = _tls_context(settings.verify_tls)
    port = parts.port or (443 if secure else 80)
    tls = context if secure else None
    proxy = proxy_for(settings, parts)
    if proxy is None:
        return _choose_address(host, port, tls, parts.geturl()), context
    name = f"{proxy.host}:{proxy.port}"
    try:
        address = resolve(proxy.host, proxy.port, None)[0]
    except (OSError, UnicodeError):
        raise UserError(f"The proxy {name} cannot be found; check its host name.") from None
    origin = Origin(host, port, address.family, address.address, tls, name, proxy.authorization)
    return origin, context


def proxy_headers(origin: Origin) -> list[tuple[str, str]]:
    """Return the headers of a request that a proxy reads."""
    if origin.tls is not None or not origin.proxy_authorization:
        return []
    return [("Proxy-Authorization", origin.proxy_authorization)]


def _tls_context(verify: bool) -> ssl.SSLContext:
    # OpenSSL ignores an unreadable SSL_CERT_FILE, and the error would then blame the server's certificate.
    context = client_context(verify)
    path = os.environ.get("SSL_CERT_FILE")
    if verify and path:
        try:
            context.load_verify_locations(path)
        except OSError as error:
            why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise UserError(f"SSL_CERT_FILE names {path}, which cannot be read: {why}.") from None
    return context


def _choose_address(host: str, port: int, context: ssl.SSLContext | None, url: str) -> Origin:
    """Return the first address that accepts a connection. If none does, return the first one: connecting will report why."""
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
