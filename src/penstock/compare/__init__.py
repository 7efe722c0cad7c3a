"""Differences between runs and their certainty. The package can be called: `penstock.compare(…)` is part of the Python API."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("penstock.api").compare(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
