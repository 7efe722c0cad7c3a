"""The routes that lead to an upstream: what they are called here, and their paths on both sides."""

from __future__ import annotations

from typing import Literal

__all__ = ["BY_PATH", "ENDPOINTS", "MODELS", "PATHS", "PREFIX", "Route"]

Route = Literal["responses", "chat", "completions", "embeddings"]

PREFIX = "/v1"
PATHS: dict[Route, str] = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
}
"""Behind the base of a provider, and behind our own prefix."""

BY_PATH: dict[str, Route] = {PREFIX + path: route for route, path in PATHS.items()}
MODELS = f"{PREFIX}/models"
"""Answered here: no upstream is asked."""

ENDPOINTS: dict[str, str] = {**{route: path for path, route in BY_PATH.items()}, "models": MODELS}
"""What an entry calls a route, and its path."""
