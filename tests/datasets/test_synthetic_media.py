"""Synthetic images and audio are valid files, and the same for the same seed."""

from __future__ import annotations

import base64
import io
import statistics
import wave

import pytest
import soundfile
from PIL import Image

from penstock.datasets.conversation import Media
from penstock.datasets.media import generate
from penstock.datasets.media.audio import audio_clips, record_mp3, record_wav
from penstock.datasets.media.images import draw_jpeg, draw_png, images
from penstock.settings.schema import AudioSettings, ImageSettings


def open_image(data_url: str) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2])))
    image.load()
    return image


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 1), (64, 48), (513, 200)])
def test_png_and_jpeg_of_any_size_are_valid(size: tuple[int, int]) -> None:
    for draw, name in ((draw_png, "PNG"), (draw_jpeg, "JPEG")):
        image = Image.open(io.BytesIO(draw("key", *size)))
        image.load()
        assert (image.format, image.size, image.mode) == (name, size, "RGB")
        Image.open(io.BytesIO(draw("key", *size))).verify()


def test_images_differ_and_depend_on_the_seed() -> None:
    settings = ImageSettings(width_mean=40, height_mean=30, format="random")
    made = images(settings, 5, 50)
    assert len({each.data for each in made}) == 50
    assert {each.format for each in made} == {"png", "jpeg"}
    assert made == images(settings, 5, 50)
    assert made[:10] == images(settings, 5, 10)
    assert made != images(settings, 6, 50)
    for each in made:
        assert each.data.startswith(f"data:image/{each.format};base64,")
        assert open_image(each.data).format == each.format.upper()


def test_image_sizes_have_the_given_mean_and_deviation() -> None:
    made = images(ImageSettings(width_mean=100, height_mean=50, width_stddev=20, height_stddev=5), 1, 200)
    widths, heights = zip(*(open_image(each.data).size for each in made), strict=True)
    assert 95 < statistics.mean(widths) < 105
    assert 15 < statistics.stdev(widths) < 25
    assert 48 < statistics.mean(heights) < 52


def test_number_of_files_is_limited_by_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def number_made(count: int, seconds: float, size: int = 1) -> int:
        media = generate.generate(range(count), lambda n: Media(str(n) + "x" * size), lambda _: seconds)
        assert [int(each.data.rstrip("x")) for each in media] == list(range(len(media)))
        return len(media)

    assert number_made(10, 0.001) == 10
    assert number_made(5000, 0.001) == generate.MAX_FILES, "the maximum number"
    assert number_made(5000, 0.1) == 50, "five seconds of work"
    assert number_made(5000, 9.0) == 16, "the minimum number"
    assert number_made(3, 9.0) == 3
    monkeypatch.setattr(generate, "_MAX_BYTES", 64_000)
    assert number_made(5000, 0.001, size=1000) == 64, "the maximum memory"


@pytest.mark.parametrize("depth", [8, 16, 24, 32])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_of_every_depth_is_valid(depth: int, channels: int) -> None:
    data = record_wav("key", 0.25, 11025, depth, channels)
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth() * 8, file.getframerate()) == (channels, depth, 11025)
        assert file.getnframes() == round(0.25 * 11025)
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == 11025
    assert 0.05 < abs(samples).max() < 0.2
    assert abs(samples.mean()) < 0.02


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16000, 1), (44100, 2), (48000, 1)])
def test_mp3_is_valid(rate: int, channels: int) -> None:
    data = record_mp3("key", 1.0, rate, channels)
    info = soundfile.info(io.BytesIO(data))
    assert (info.format, info.samplerate, info.channels) == ("MP3", rate, channels)
    assert abs(info.duration - 1.0) < 0.1


def test_audio_clips_differ_and_depend_on_the_seed() -> None:
    settings = AudioSettings(seconds_mean=0.5, seconds_stddev=0.1, rates=(8000, 16000), depths=(8, 16))
    made = audio_clips(settings, 5, 30)
    assert len({each.data for each in made}) == 30
    assert made == audio_clips(settings, 5, 30)
    assert made != audio_clips(settings, 6, 30)
    kinds = set()
    for each in made:
        with wave.open(io.BytesIO(base64.b64decode(each.data))) as file:
            kinds.add((file.getframerate(), file.getsampwidth()))
    assert kinds == {(8000, 1), (8000, 2), (16000, 1), (16000, 2)}
