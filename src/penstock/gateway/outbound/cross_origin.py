"""Headers that let pages of other origins call the gateway (CORS). No I/O."""

from __future__ import annotations

import re

_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")
_EXPOSED = (
    "x-request-id, request-id, x-penstock-request-id, x-penstock-served-by, x-upstream-request-id, retry-after, server-timing, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    "x-ratelimit-limit-concurrent, x-ratelimit-remaining-concurrent"
)
_MAX_AGE_S = "7200"


class CrossOrigin:
    """The origins whose pages may call the gateway."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)
        self._any = "*" in origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def headers(self, origin: str | None) -> tuple[tuple[str, str], ...]:
        """Return the headers of a reply to a page of this origin."""
        if origin is None or not (self._any or origin.lower() in self._origins):
            return (("vary", "origin"),)
        allowed = "*" if self._any else origin
        return (
            ("vary", "origin"),
            ("access-control-allow-origin", allowed),
            ("access-control-expose-headers", _EXPOSED),
        )

    def preflight(self, requested_headers: str | None, methods: str) -> tuple[tuple[str, str], ...]:
        """Return the headers that answer the question which methods and headers a page may send."""
        names = requested_headers if requested_headers and _HEADER_NAMES.fullmatch(requested_headers) else ""
        return (
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", names or "authorization, content-type"),
            ("access-control-max-age", _MAX_AGE_S),
        )
