"""Objects that installed packages add to Penstock through entry points.

`importlib.metadata` takes 20 ms or more to import and to search. Most installations have no plugin, so the files that it
would read are searched for the name of the group first, which takes about 1 ms.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

ENDPOINTS = "penstock.endpoints"
FORMATS = "penstock.dataset_formats"
METRICS = "penstock.metrics"


def load_plugins(group: str, kind: type[T], noun: str) -> list[tuple[str, T]]:
    """Return the objects of a group with their names. Raise UserError for one that is no `kind` or cannot be loaded.

    `noun` says in messages what a plugin is.
    """
    if not _is_mentioned(group):
        return []
    from importlib.metadata import entry_points

    loaded: list[tuple[str, T]] = []
    for plugin in entry_points(group=group):
        try:
            value = plugin.load()
        except Exception as error:
            raise broken_plugin(plugin, noun, error) from error
        if not isinstance(value, kind):
            raise broken_plugin(plugin, noun, TypeError(f"it is not a {kind.__name__}"))
        loaded.append((plugin.name, value))
    return loaded


def broken_plugin(plugin: EntryPoint, noun: str, error: Exception) -> UserError:
    """Return the error for a plugin of another package that raised an exception."""
    package = plugin.dist.name if plugin.dist is not None else plugin.value
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(
        f"The {noun} '{plugin.name}' of the package {package} cannot be loaded ({reason}); repair or remove the package."
    )


def _is_mentioned(group: str) -> bool:
    """Return whether a package on the path mentions the group in its entry points."""
    needle = group.encode()
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        if needle in file.read():
                            return True
                except OSError:
                    continue
    return False
