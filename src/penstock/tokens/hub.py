"""A model's tokenizer.json from the caches on disk or from the Hugging Face hub, with the standard library only.

The hub is asked by plain HTTP, for two reasons: its own package takes 0.3 s to import,
and no setting of it bounds the whole wait (a name server that hangs has no timeout). Here the request runs in a daemon
thread, and the caller stops waiting when its time is up.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    import http.client
    import urllib.request

__all__ = ["ANSWER_S", "HubError", "cached", "fetch", "is_hub_id", "is_offline", "store"]

ANSWER_S = 2.0
"""How long the hub may take to begin its answer."""

_FILE = "tokenizer.json"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_LARGEST = 256 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")


class HubError(Exception):
    """Its message completes the sentence "the hub …"."""


def is_hub_id(name: str) -> bool:
    return len(name) <= 200 and _ID.fullmatch(name) is not None and ".." not in name


def is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def cached(repo: str, revision: str) -> list[str]:
    """Paths of copies on disk, the one to prefer first: the hub's own cache, then ours."""
    paths = [_in_hub_cache(repo, revision), _in_our_cache(repo, revision)]
    return [path for path in paths if path and os.path.isfile(path)]


def store(repo: str, revision: str, data: bytes) -> None:
    """Keep a fetched file, so that the next run needs no network. A cache that cannot be written is no error.

    A revision that moves, such as main, stays as it was first fetched: counts of two runs should not differ unasked.
    """
    path = _in_our_cache(repo, revision)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)


def fetch(repo: str, revision: str, total_s: float) -> bytes:
    """Ask the hub once; the answer must begin within ANSWER_S and be complete within `total_s`."""
    import urllib.request  # noqa: F401 - here rather than in the thread, so that its import is not cut short

    job = _Job(f"{_endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{_FILE}")
    begin = time.monotonic()
    threading.Thread(target=job.run, name="hub", daemon=True).start()
    try:
        if not job.answered.wait(min(ANSWER_S, total_s)):
            raise HubError(f"did not answer within {min(ANSWER_S, total_s):g} s")
        if not job.finished.wait(max(0.0, begin + total_s - time.monotonic())):
            raise HubError(f"did not deliver the file within {total_s:g} s")
    finally:
        job.abandoned = True
    if job.data is None:
        raise HubError(job.problem)
    return job.data


class _Job:
    def __init__(self, url: str) -> None:
        self.url = url
        self.answered = threading.Event()
        self.finished = threading.Event()
        self.abandoned = False
        """Nobody waits any more: stop reading, so that no download runs beside the measurement."""
        self.data: bytes | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            self.data = self._download()
        except Exception as error:
            self.problem = _explain(error)
        finally:
            self.answered.set()
            self.finished.set()

    def _download(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        with _open(self.url) as reply:
            self.answered.set()
            expected = reply.length
            while not self.abandoned and (part := reply.read1(1 << 18)):
                parts.append(part)
                size += len(part)
                if size > _LARGEST:
                    raise HubError(f"sent more than {_LARGEST >> 20} MB")
        if expected is not None and size < expected:
            raise HubError("closed the connection before the file was complete")
        return b"".join(parts)


def _open(url: str) -> http.client.HTTPResponse:
    import ssl
    import urllib.request

    class SameHostKeepsToken(urllib.request.HTTPRedirectHandler):
        """The hub redirects to storage hosts, which must not see the user's token, and from old names to new ones."""

        def redirect_request(
            self, req: urllib.request.Request, fp: object, code: int, msg: str, headers: object, newurl: str
        ) -> urllib.request.Request | None:
            new = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
            token = req.get_header("Authorization")
            if new and token and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
                new.add_unredirected_header("Authorization", token)
            return new

    context = ssl.create_default_context()
    try:
        import certifi  # some Python builds come without certificates of their own

        context.load_verify_locations(certifi.where())
    except (ImportError, OSError):
        pass
    opener = urllib.request.build_opener(SameHostKeepsToken, urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, headers={"User-Agent": "penstock"})  # noqa: S310 - the user's own endpoint
    if token := _token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    # A bound for the thread's sake; the caller's own clock decides.
    reply: http.client.HTTPResponse = opener.open(request, timeout=10)
    return reply


def _explain(error: Exception) -> str:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    if isinstance(error, HubError):
        return str(error)
    if isinstance(error, HTTPError):
        if error.code in (401, 403):
            return f"refused it (HTTP {error.code}): it does not exist there or needs a token in HF_TOKEN"
        if error.code == 404:
            return f"has no {_FILE} for it (HTTP 404)"
        return f"answered with HTTP {error.code}"
    if isinstance(error, URLError):
        return f"could not be reached ({_reason(error.reason)})"
    if isinstance(error, OSError | HTTPException):
        return f"could not be reached ({_reason(error)})"
    return f"could not be asked ({error})"


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")


def _token() -> str | None:
    """What the hub's own tools use: the variable, else the file that their login writes."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token:
        return token
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return None
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(_hub_home(), "token")
    try:
        with open(os.path.expanduser(path), encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, UnicodeError):
        return None


def _in_hub_cache(repo: str, revision: str) -> str | None:
    root = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(_hub_home(), "hub")
    model = os.path.join(os.path.expanduser(root), "models--" + repo.replace("/", "--"))
    try:
        with open(os.path.join(model, "refs", revision), encoding="ascii") as file:
            commit = file.read().strip()
    except (OSError, UnicodeError, ValueError):
        commit = revision  # it may be a commit already
    return os.path.join(model, "snapshots", commit, _FILE)


def _in_our_cache(repo: str, revision: str) -> str:
    folder = os.path.join(_cache_home(), "penstock", "tokenizers", repo.replace("/", "--"), quote(revision, safe=""))
    return os.path.join(folder, _FILE)


def _hub_home() -> str:
    return os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(_cache_home(), "huggingface"))


def _cache_home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
