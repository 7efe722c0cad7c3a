"""The dialects that the server supports; a path belongs to the first one whose `path` it ends with."""

from __future__ import annotations

from penstock.mock_server.audio_transcription import AudioTranscription
from penstock.mock_server.chat import Chat
from penstock.mock_server.completions import Completions
from penstock.mock_server.dialect import Dialect
from penstock.mock_server.embeddings import Embeddings
from penstock.mock_server.huggingface_generate import HuggingFaceGenerate, HuggingFaceGenerateStream
from penstock.mock_server.image_edit import ImageEdit
from penstock.mock_server.image_generation import ImageGeneration
from penstock.mock_server.image_retrieval import ImageRetrieval
from penstock.mock_server.messages import Messages
from penstock.mock_server.rankings import CohereRankings, NimRankings, TeiRankings
from penstock.mock_server.responses import Responses

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
    ImageEdit(),
    ImageRetrieval(),
    AudioTranscription(),
)


def find_dialect(path: str) -> Dialect | None:
    for dialect in DIALECTS:
        if path.endswith(dialect.path):
            return dialect
    return None
