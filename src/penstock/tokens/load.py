"""Which tokenizer counts: the one the user names, else the model's own, else the builtin one with a note."""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.errors import UserError
from penstock.tokens import hub
from penstock.tokens.huggingface import read_tokenizer_json
from penstock.tokens.tekken import builtin, open_tekken
from penstock.tokens.tokenizer import Source, Tokenizer

__all__ = ["BUILTIN", "Loaded", "load"]

BUILTIN = "builtin"

_FILES = ("tokenizer.json", "tekken.json")
_NAMED_S = 60.0
"""A tokenizer that the user asks for by name is worth a download; the hub must still begin to answer at once."""


class Loaded(NamedTuple):
    tokenizer: Tokenizer
    note: str | None
    """A sentence for the user when the tokenizer is not the one they would expect."""


def load(name: str | None, model: str, revision: str = "main") -> Loaded:
    if name is not None:
        return Loaded(_named(name, revision), None)
    try:
        return Loaded(_of_model(model, revision), None)
    except _UnavailableError as reason:
        fallback = builtin()
        return Loaded(
            fallback,
            f"No tokenizer for '{model}' could be had: {reason}; the builtin vocabulary "
            f"({fallback.size:,} tokens) takes its place. Name the right one with --tokenizer.",
        )


class _UnavailableError(Exception):
    """Its message is the reason, to stand after a colon."""


def _named(name: str, revision: str) -> Tokenizer:
    if name.lower() == BUILTIN:
        return builtin()
    try:
        return _from_disk(name) or _from_cache_or_hub(name, revision, _NAMED_S)
    except _UnavailableError as reason:
        raise UserError(
            f"The tokenizer '{name}' could not be loaded: {reason}; give --tokenizer a folder or file that "
            f"has one, a hub id, or '{BUILTIN}'."
        ) from None


def _of_model(model: str, revision: str) -> Tokenizer:
    try:
        tokenizer = _from_disk(model)
    except _UnavailableError:
        # A folder that merely has the model's name, such as one with its results, is no reason to stop looking.
        if not hub.is_hub_id(model):
            raise
        tokenizer = None
    return tokenizer or _from_cache_or_hub(model, revision, hub.ANSWER_S)


def _from_disk(name: str) -> Tokenizer | None:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _from_folder(path, name)
    return _read(path, name, "file") if os.path.isfile(path) else None


def _from_cache_or_hub(name: str, revision: str, patience_s: float) -> Tokenizer:
    if not hub.is_hub_id(name):
        raise _UnavailableError("there is no such folder or file, and it is not a hub id")
    for copy in hub.cached(name, revision):
        try:
            return _read(copy, name, "cache")
        except _UnavailableError:
            continue  # a damaged copy; another, or the hub, may have a good one
    return _from_hub(name, revision, patience_s)


def _from_folder(folder: str, name: str) -> Tokenizer:
    for file in _FILES:
        path = os.path.join(folder, file)
        if os.path.isfile(path):
            return _read(path, name, "folder")
    raise _UnavailableError(f"the folder has no {_FILES[0]}{_what_it_has(folder)}")


def _what_it_has(folder: str) -> str:
    if os.path.isfile(os.path.join(folder, "tokenizer.model")):
        return " (its tokenizer.model is in a format that is not read here)"
    return ""


def _from_hub(name: str, revision: str, patience_s: float) -> Tokenizer:
    if hub.is_offline():
        raise _UnavailableError("it is neither here nor in the cache, and HF_HUB_OFFLINE forbids asking the hub")
    try:
        data = hub.fetch(name, revision, patience_s)
    except hub.HubError as error:
        raise _UnavailableError(f"it is neither here nor in the cache, and the hub {error}") from None
    try:
        tokenizer = read_tokenizer_json(data, name, "hub")
    except ValueError as error:
        raise _UnavailableError(f"what the hub sent is not a tokenizer ({error})") from None
    hub.store(name, revision, data)
    return tokenizer


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
