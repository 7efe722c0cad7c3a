"""Base URLs: made whole, checked, and parted from the credentials that some of them carry."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import SplitResult, quote, unquote, urlsplit

from penstock.errors import UserError
from penstock.secrets import redact_url

__all__ = ["check_request_target", "normalize_urls"]

_MOCK = "mock://"


def normalize_urls(texts: list[str], spelling: str, *, whole: bool = False) -> tuple[tuple[str, ...], str | None]:
    """The URLs without userinfo, and the Authorization header that their userinfo stands for. `whole`: no path will be
    added, so a slash at the end means something."""
    urls: list[str] = []
    credentials: set[str | None] = set()
    for text in texts:
        url, credential = _normal_url(text, spelling, whole)
        urls.append(url)
        credentials.add(credential)
    if len(credentials) > 1:
        raise UserError(f"{spelling} has URLs with different user names or passwords; give all of them the same.")
    return tuple(urls), credentials.pop()


def _normal_url(text: str, spelling: str, whole_path: bool) -> tuple[str, str | None]:
    if text[: len(_MOCK)].lower() == _MOCK:
        return _MOCK + text[len(_MOCK) :], None
    whole = text if "://" in text else f"http://{text}"
    subject = f"{spelling} {redact_url(text)!r}"
    _check_visible(whole, subject)
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError:
        raise _bad_port_or_host(whole, subject) from None
    if parts.scheme not in ("http", "https"):
        raise UserError(f"{subject} must start with http://, https:// or mock://, not {parts.scheme}://.")
    if not parts.hostname:
        raise UserError(f"{subject} has no host; write it like http://localhost:8000.")
    if port == 0 or "," in parts.netloc:
        raise _bad_port_or_host(whole, subject)
    if not parts.hostname.isascii():
        raise UserError(f"{subject} has a host outside ASCII; write it in the form that begins with xn--.")
    check_request_target(parts.path + parts.query, subject)
    if parts.fragment:
        raise UserError(f"{subject} has a part after '#', which a server never sees; leave it out.")
    host = parts.netloc.rpartition("@")[2]
    bare = parts._replace(netloc=host.removesuffix(":"), path=parts.path if whole_path else parts.path.rstrip("/"))
    return bare.geturl(), _credential(parts)


def check_request_target(text: str, subject: str) -> None:
    """Whether the text can stand in the first line of a request, which has no place for anything but visible ASCII."""
    _check_visible(text, subject)
    for char in text:
        if not char.isascii():
            raise UserError(f"{subject} has {char!r} in it, which a request cannot carry; write it as {quote(char)}.")


def _check_visible(text: str, subject: str) -> None:
    if any(char.isspace() or not char.isprintable() for char in text):
        raise UserError(f"{subject} has a space or a control character in it; write it as %20.")


def _bad_port_or_host(whole: str, subject: str) -> UserError:
    if "," in whole.partition("://")[2].partition("/")[0]:
        return UserError(f"{subject} has a comma in its host; put spaces between several URLs.")
    return UserError(f"{subject} needs a host and, after a colon, a port from 1 to 65535.")


def _credential(parts: SplitResult) -> str | None:
    if "@" not in parts.netloc:
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()
