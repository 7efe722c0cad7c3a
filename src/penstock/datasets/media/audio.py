"""Synthetic audio: quiet noise in real WAV and MP3 files, the same for the same seed."""

from __future__ import annotations

import io
import wave
from base64 import b64encode
from collections.abc import Callable
from hashlib import shake_128
from typing import TYPE_CHECKING

from penstock.datasets.conversation import Media
from penstock.datasets.media.generate import generate
from penstock.datasets.random_streams import number, stream
from penstock.datasets.sentences import pick
from penstock.extras import require_extra
from penstock.settings.schema import AudioSettings, NumberDistribution

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHORTEST_S = 0.1
_QUIET_BITS = 3
"""How many bits the noise is below full scale."""


def audio_clips(
    settings: AudioSettings,
    seed: int,
    count: int,
    progress: Callable[[int, int], None] | None = None,
    distribution: Callable[[str], NumberDistribution | None] = lambda _: None,
) -> list[Media]:
    """Return `count` different clips, or fewer if they would take too much time or memory."""
    if settings.format == "mp3":
        require_extra("media", "Synthetic audio in MP3", "soundfile")
    lengths, rates, depths = (stream(seed, f"sound {part}") for part in ("lengths", "rates", "depths"))
    seconds_of = settings.seconds_mean, settings.seconds_stddev, distribution("audio.seconds_mean")
    clips = []
    for clip in range(count):
        seconds = max(_SHORTEST_S, number(lengths, *seconds_of))
        rate, depth = pick(rates, settings.rates), pick(depths, settings.depths)
        clips.append((f"{seed}/sound/{clip}", seconds, rate, depth, settings.channels, settings.format))
    return generate(clips, _record, _recording_seconds, progress)


_Clip = tuple[str, float, int, int, int, str]
"""Key, seconds, rate, depth, channels, format."""


def _recording_seconds(clip: _Clip) -> float:
    """Return how long the clip takes to make: at 16 kHz, 0.2 ms per second of WAV and 6 ms per second of MP3."""
    _, seconds, rate, _, channels, format_ = clip
    return seconds * rate / 16000 * channels * (6e-3 if format_ == "mp3" else 2e-4)


def _record(clip: _Clip) -> Media:
    key, seconds, rate, depth, channels, format_ = clip
    wav = format_ == "wav"
    data = record_wav(key, seconds, rate, depth, channels) if wav else record_mp3(key, seconds, rate, channels)
    return Media(b64encode(data).decode(), format_, seconds=max(1, round(seconds * rate)) / rate)


def record_wav(key: str, seconds: float, rate: int, depth: int, channels: int) -> bytes:
    width = depth // 8
    samples = _noise(key, seconds, rate, channels).astype("<i4") << 16
    data = samples.reshape(-1, 1).view("u1")[:, 4 - width :]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes((data ^ 0x80 if width == 1 else data).tobytes())  # 8 bits are unsigned in WAV
    return file.getvalue()


def record_mp3(key: str, seconds: float, rate: int, channels: int) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, _noise(key, seconds, rate, channels), rate, format="MP3")
    return file.getvalue()


def _noise(key: str, seconds: float, rate: int, channels: int) -> NDArray[np.int16]:
    """Return quiet samples that are a hash of the key, so that they are the same on every machine: a row per frame."""
    import numpy as np

    count = max(1, round(seconds * rate))
    samples = np.frombuffer(shake_128(key.encode()).digest(2 * count * channels), "<i2") >> _QUIET_BITS
    return samples.reshape(count, channels)
