"""The routes that lead to an upstream: one dialect for each."""

from __future__ import annotations

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.chat import Chat
from penstock.gateway.dialects.completions import Completions
from penstock.gateway.dialects.embeddings import Embeddings
from penstock.gateway.dialects.messages import Messages
from penstock.gateway.dialects.responses import Responses

Route = str
"""The name of a dialect."""

DIALECTS: tuple[Dialect, ...] = (
    Responses(),
    Chat(),
    Completions(),
    Embeddings(),
    Messages(),
)

PREFIX = "/v1"
MODELS = f"{PREFIX}/models"
"""The list of models, which the gateway answers itself."""
BY_NAME: dict[Route, Dialect] = {dialect.name: dialect for dialect in DIALECTS}
BY_PATH: dict[str, Dialect] = {PREFIX + dialect.path: dialect for dialect in DIALECTS}
ENDPOINTS: dict[str, str] = {**{dialect.name: path for path, dialect in BY_PATH.items()}, "models": MODELS}
"""Path by the name of a route in the ledger."""
DEFAULT_BASES: dict[str, str] = {
    dialect.provider: dialect.default_base for dialect in DIALECTS if dialect.provider and dialect.default_base
}
"""Base URLs of providers whose key has no `api_base`."""
