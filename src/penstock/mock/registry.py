"""The dialects that the server speaks; a path belongs to the first whose `path` it ends with."""

from __future__ import annotations

from penstock.mock.chat import Chat
from penstock.mock.completions import Completions
from penstock.mock.dialect import Dialect
from penstock.mock.embeddings import Embeddings
from penstock.mock.responses import Responses

__all__ = ["DIALECTS", "find"]

DIALECTS: tuple[Dialect, ...] = (Chat(), Completions(), Responses(), Embeddings())


def find(path: str) -> Dialect | None:
    for dialect in DIALECTS:
        if path.endswith(dialect.path):
            return dialect
    return None
