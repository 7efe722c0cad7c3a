"""A mock model server with known timing. The package can be called: `penstock.mock(…)` is part of the Python API."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("penstock.api").mock(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
