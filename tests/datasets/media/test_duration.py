"""The length of audio clips."""

from __future__ import annotations

from base64 import b64encode

import pytest

from penstock.datasets.conversation import Media
from penstock.datasets.media.audio import record_mp3, record_wav
from penstock.datasets.media.duration import audio_seconds


@pytest.mark.parametrize(("rate", "depth", "channels"), [(16000, 16, 1), (44100, 24, 2)])
def test_length_of_a_wav_file_is_that_of_its_head(rate: int, depth: int, channels: int) -> None:
    data = b64encode(record_wav("key", 1.25, rate, depth, channels)).decode()
    assert audio_seconds(Media(data, "wav")) == 1.25


def test_length_of_an_mp3_file_is_about_that_of_its_samples() -> None:
    pytest.importorskip("soundfile")
    data = b64encode(record_mp3("key", 1.0, 16000, 1)).decode()
    assert audio_seconds(Media(data, "mp3")) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("media", [Media("http://host/a.wav", "wav"), Media("AAAA", "wav"), Media("AAAA", "flac")])
def test_length_of_a_url_or_of_a_broken_file_is_not_known(media: Media) -> None:
    assert audio_seconds(media) is None
