"""The dialects that the server supports; a path belongs to the first one whose `path` it ends with."""

from __future__ import annotations

from penstock.mock.audio_transcription import AudioTranscription
from penstock.mock.chat import Chat
from penstock.mock.completions import Completions
from penstock.mock.dialect import Dialect
from penstock.mock.embeddings import Embeddings
from penstock.mock.huggingface_generate import HuggingFaceGenerate, HuggingFaceGenerateStream
from penstock.mock.image_generation import ImageGeneration
from penstock.mock.messages import Messages
from penstock.mock.rankings import CohereRankings, NimRankings, TeiRankings
from penstock.mock.responses import Responses

__all__ = ["DIALECTS", "find_dialect"]

DIALECTS: tuple[Dialect, ...] = (
    Chat(),
    Completions(),
    Responses(),
    Embeddings(),
    Messages(),
    NimRankings(),
    CohereRankings(),
    TeiRankings(),
    HuggingFaceGenerate(),
    HuggingFaceGenerateStream(),
    ImageGeneration(),
    AudioTranscription(),
)


def find_dialect(path: str) -> Dialect | None:
    for dialect in DIALECTS:
        if path.endswith(dialect.path):
            return dialect
    return None
