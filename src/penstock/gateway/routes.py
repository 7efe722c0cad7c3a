"""The routes that lead to an upstream: their names and paths."""

from __future__ import annotations

from typing import Literal

__all__ = ["BY_PATH", "DEFAULT_BASES", "ENDPOINTS", "MODELS", "PATHS", "PREFIX", "Route"]

Route = Literal["responses", "chat", "completions", "embeddings"]

PREFIX = "/v1"
DEFAULT_BASES = {"openai": "https://api.openai.com/v1"}
"""Base URLs of providers whose key has no `api_base`."""
PATHS: dict[Route, str] = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
}
"""Paths after a provider's base URL, and after the gateway's own prefix."""

BY_PATH: dict[str, Route] = {PREFIX + path: route for route, path in PATHS.items()}
MODELS = f"{PREFIX}/models"
"""The list of models, which the gateway answers itself."""

ENDPOINTS: dict[str, str] = {**{route: path for path, route in BY_PATH.items()}, "models": MODELS}
"""Path by the name of a route in the ledger."""
