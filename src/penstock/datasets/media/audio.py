"""Synthetic sound: quiet noise in real WAV and MP3 files, the same for the same seed."""

from __future__ import annotations

import io
import struct
from base64 import b64encode
from collections.abc import Callable
from hashlib import shake_128
from typing import TYPE_CHECKING, Any

from penstock.datasets.conversation import Media
from penstock.datasets.media.generate import make
from penstock.datasets.random_streams import normal, stream
from penstock.datasets.sentences import pick
from penstock.extras import require_extra
from penstock.settings.schema import AudioSettings

if TYPE_CHECKING:
    import numpy as np

    Samples = np.ndarray[Any, np.dtype[np.int16]]

__all__ = ["record_mp3", "record_wav", "sounds"]

_SHORTEST_S = 0.1
_QUIET = 3
"""Bits below full scale."""


def sounds(
    settings: AudioSettings, seed: int, count: int, progress: Callable[[int, int], None] | None = None
) -> list[Media]:
    """As many as are asked for, or as many different ones as it makes sense to keep."""
    if settings.format == "mp3":
        require_extra("media", "Synthetic audio in MP3", "soundfile")
    lengths, rates, depths = (stream(seed, f"sound {part}") for part in ("lengths", "rates", "depths"))
    plans = []
    for number in range(count):
        seconds = max(_SHORTEST_S, normal(lengths, settings.seconds_mean, settings.seconds_stddev))
        rate, depth = pick(rates, settings.rates), pick(depths, settings.depths)
        plans.append((f"{seed}/sound/{number}", seconds, rate, depth, settings.channels, settings.format))
    return make(plans, _sound, _seconds, progress)


_Plan = tuple[str, float, int, int, int, str]
"""Key, seconds, rate, depth, channels, format."""


def _seconds(plan: _Plan) -> float:
    """How long it takes to make: measured at 16 kHz, 0.2 ms for a second of WAV and 6 ms for one of MP3."""
    _, seconds, rate, _, channels, form = plan
    return seconds * rate / 16000 * channels * (6e-3 if form == "mp3" else 2e-4)


def _sound(plan: _Plan) -> Media:
    key, seconds, rate, depth, channels, form = plan
    wav = form == "wav"
    data = record_wav(key, seconds, rate, depth, channels) if wav else record_mp3(key, seconds, rate, channels)
    return Media(b64encode(data).decode(), form)


def record_wav(key: str, seconds: float, rate: int, depth: int, channels: int) -> bytes:
    samples = _noise(key, seconds, rate, channels)
    width = depth // 8
    if depth == 8:
        data = ((samples >> 8) + 128).astype("u1").tobytes()
    elif depth == 16:
        data = samples.astype("<i2").tobytes()
    else:
        wide = (samples.astype("<i4") << 16).reshape(-1, 1).view("u1")
        data = wide[:, 4 - width :].tobytes()
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * width, channels * width, depth)
    padding = b"\0" * (len(data) % 2)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data + padding
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def record_mp3(key: str, seconds: float, rate: int, channels: int) -> bytes:
    import soundfile

    file = io.BytesIO()
    samples = _noise(key, seconds, rate, channels).reshape(-1, channels)
    soundfile.write(file, samples, rate, format="MP3")
    return file.getvalue()


def _noise(key: str, seconds: float, rate: int, channels: int) -> Samples:
    """The hash gives the same samples on every machine and version."""
    import numpy as np

    count = max(1, round(seconds * rate)) * channels
    return np.frombuffer(shake_128(key.encode()).digest(2 * count), "<i2") >> _QUIET
