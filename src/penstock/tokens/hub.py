"""Files in the Hugging Face cache and on the hub, through the `huggingface_hub` package: of tokenizers and of datasets.

The package takes 0.3 s of CPU time to import, so it is imported only when the cache has a folder of the model or the hub
is asked. None of its settings limits the whole wait (it retries, and name resolution has no timeout). The request
therefore runs in a daemon thread, and the caller stops waiting when the time is up.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, cast

ANSWER_S = 2.0
"""Seconds within which the hub must begin to answer."""

_FILE = "tokenizer.json"
_NAME = r"\w([\w.-]*\w)?"
_ID = re.compile(rf"({_NAME}/)?{_NAME}", re.ASCII)
_PROGRESS_S = 0.2
_DATASET_ANSWER_S = 60.0
"""Longer than for a tokenizer, which has a fallback: a dataset has none."""
_CHUNK_BYTES = 256 * 1024
"""Bytes between two checks whether a download is still wanted. The package's own value is 10 MB."""


class HubError(Exception):
    """The message completes the sentence "the hub …"."""


def is_hub_id(name: str) -> bool:
    return len(name) <= 96 and _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def is_offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def cached_file(repo: str, revision: str, file: str = _FILE) -> str | None:
    """Return the path of the copy in the hub's cache, or None.

    A copy of a branch such as main is not updated, so that two runs count alike unless the user asks for another revision.
    """
    from huggingface_hub import constants

    if not os.path.isdir(os.path.join(constants.HF_HUB_CACHE, "models--" + repo.replace("/", "--"))):
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(repo, file, revision=revision)
    except OSError:
        return None
    return path if isinstance(path, str) else None


def fetch_dataset(repo: str, file: str, progress: Callable[[int, int], None] | None = None) -> str:
    """Return the path of a file of a dataset in the hub's cache, and download it if it is not there.

    The answer must begin within a minute. `progress` is called with the bytes done and the size.
    """
    from huggingface_hub import try_to_load_from_cache

    copy = try_to_load_from_cache(repo, file, repo_type="dataset")
    if isinstance(copy, str):
        return copy
    if is_offline():
        raise HubError("may not be asked, because HF_HUB_OFFLINE is set")
    job = _Download(repo, "main", False, file, "dataset")
    job.start()
    try:
        if not job.answered.wait(_DATASET_ANSWER_S):
            raise HubError(f"did not answer within {_DATASET_ANSWER_S:g} s")
        while not job.finished.wait(_PROGRESS_S):
            if progress is not None and job.size:
                progress(job.done, job.size)
    finally:
        job.abandoned = True
    if job.path is None:
        raise HubError(job.error)
    return job.path


def download(repo: str, revision: str, limit_s: float, *, replace: bool = False, file: str = _FILE) -> bytes:
    """Download into the hub's cache. The answer must begin within ANSWER_S and be complete within `limit_s`.

    `replace` overwrites a copy that the cache already has.
    """
    begin = time.monotonic()
    job = _Download(repo, revision, replace, file)
    job.start()
    try:
        if not job.answered.wait(min(ANSWER_S, limit_s)):
            raise HubError(f"did not answer within {min(ANSWER_S, limit_s):g} s")
        if not job.finished.wait(max(0.0, begin + limit_s - time.monotonic())):
            raise HubError(f"did not deliver the file within {limit_s:g} s")
    finally:
        job.abandoned = True
    if job.data is None:
        raise HubError(job.error)
    return job.data


class _Download(threading.Thread):
    def __init__(self, repo: str, revision: str, replace: bool, file: str, repo_type: str = "model") -> None:
        super().__init__(name="hub", daemon=True)
        self.repo, self.revision, self.replace, self.file = repo, revision, replace, file
        self.answered = threading.Event()
        self.finished = threading.Event()
        self.abandoned = False
        """Set when the caller stops waiting, so that no download runs during the measurement."""
        self.repo_type = repo_type
        self.done = 0
        self.size = 0
        """Bytes of the file; 0 until they are known."""
        self.data: bytes | None = None
        """The content of the file of a model."""
        self.path: str | None = None
        """The file of a dataset, in the cache."""
        self.error = ""

    def run(self) -> None:
        try:
            self._download()
        except Exception as error:
            self.error = _explain(error, self.file)
        finally:
            self.answered.set()
            self.finished.set()

    def _download(self) -> None:
        import logging

        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

        constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
        # The threads of the Xet client cannot be stopped, and plain HTTP suffices for a few megabytes.
        constants.HF_HUB_DISABLE_XET = True
        constants.HF_HUB_DISABLE_TELEMETRY = True  # saves a request
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # the caller reports errors
        # Ask once here: `hf_hub_download` retries for minutes when the hub cannot be reached.
        metadata = get_hf_file_metadata(
            hf_hub_url(self.repo, self.file, revision=self.revision, repo_type=self.repo_type)
        )
        if metadata.commit_hash is None or metadata.etag is None:
            raise HubError("did not answer like a Hugging Face hub; check HF_ENDPOINT, and whether a proxy answered")
        self.answered.set()
        if self.abandoned:
            raise HubError("answered too late")
        self.size = metadata.size or 0
        if self.repo_type == "dataset":
            self.path = self._download_into(None)
            return
        try:
            self.data = _read(self._download_into(None))
        except OSError as error:
            if error.errno is None:  # an HTTP error
                raise
            with tempfile.TemporaryDirectory() as folder:  # the cache cannot be written
                self.data = _read(self._download_into(folder))

    def _download_into(self, cache: str | None) -> str:
        from huggingface_hub import hf_hub_download

        path: str = hf_hub_download(
            self.repo,
            self.file,
            repo_type=self.repo_type,
            revision=self.revision,
            cache_dir=cache,
            force_download=self.replace,
            tqdm_class=cast(Any, self._progress),
        )
        return path

    def _progress(self, **_: object) -> _Progress:
        return _Progress(self)


class _Progress:
    """A progress bar that draws nothing, and ends the download when the caller has stopped waiting."""

    def __init__(self, job: _Download) -> None:
        self._job = job

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: float | None = 1) -> None:
        self._job.done += int(count or 0)
        if self._job.abandoned:
            raise HubError("was too slow")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _explain(error: Exception, file: str) -> str:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    if isinstance(error, HubError):
        return str(error)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if isinstance(error, GatedRepoError):
            return f"refused it (HTTP {status}): accept the model's terms on the hub and set HF_TOKEN"
        if status in (401, 403):
            return f"refused it (HTTP {status}): it does not exist there or needs a token in HF_TOKEN"
        if status == 404:
            return f"has no {file} for it (HTTP 404)"
        return f"answered with HTTP {status}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"could not be used, because {error.filename} cannot be written ({error.strerror})"
    return f"could not be reached ({_reason(error)})"


def _reason(error: BaseException) -> str:
    """Return the text of the system error that an HTTP client's exception was raised from."""
    reason: BaseException = error
    origin: BaseException | None = error
    while origin is not None:
        if isinstance(origin, OSError):
            reason = origin
        origin = origin.__cause__ or origin.__context__
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
