"""The length of audio clips."""

from __future__ import annotations

import binascii
import io
import wave
from base64 import b64decode

from penstock.datasets.conversation import Media

_WAV_HEAD = 1 << 16
"""Characters of base64 that contain the head of a WAV file, which gives the number of frames."""


def audio_seconds(audio: Media) -> float | None:
    """Return the length of a clip in seconds; None if it is not known. Formats other than WAV need the extra `media`."""
    if audio.seconds is not None:
        return audio.seconds
    return None if audio.data.startswith(("http://", "https://")) else _data_seconds(audio.data, audio.format)


def _data_seconds(data: str, format_: str) -> float | None:
    try:
        if format_ == "wav":
            with wave.open(io.BytesIO(b64decode(data[:_WAV_HEAD]))) as clip:
                return float(clip.getnframes() / clip.getframerate())
        import soundfile

        return float(soundfile.info(io.BytesIO(b64decode(data))).duration)
    except (EOFError, ImportError, OSError, RuntimeError, ValueError, binascii.Error, wave.Error):
        return None
