"""Penstock: a benchmark and a gateway for LLM servers."""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from penstock.api import PointResult, Request, Result, Runner, SweepResult, compare, mock, profile, sweep
    from penstock.errors import PenstockError, RunError, UserError

__all__ = [
    "PenstockError",
    "PointResult",
    "Request",
    "Result",
    "RunError",
    "Runner",
    "SweepResult",
    "UserError",
    "__version__",
    "compare",
    "mock",
    "profile",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import the API on first use: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    module = "penstock.errors" if name.endswith("Error") else "penstock.api"
    return getattr(import_module(module), name)
