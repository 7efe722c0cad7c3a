"""Images and audio by path, URL and data URL."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from penstock.datasets.conversation import Media, Turn
from penstock.datasets.media import files
from penstock.datasets.media.audio import record_mp3, record_wav
from penstock.datasets.media.files import MediaFiles, read_audio, read_image
from penstock.datasets.media.images import draw_jpeg, draw_png
from penstock.datasets.single_turn import SingleTurn
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from support.prompts import read_whole

PNG, JPEG = draw_png("x", 9, 7), draw_jpeg("x", 9, 7)
WAV, MP3 = record_wav("x", 0.1, 8000, 16, 1), record_mp3("x", 0.2, 16000, 1)
FILES = {
    "a.png": PNG,
    "b.jpg": JPEG,
    "c.wav": WAV,
    "d.mp3": MP3,
    "odd": PNG,
    "notes.png": b"hello",
    "e.gif": b"GIF89a..",
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return str(tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("a.png", "png"), ("b.jpg", "jpeg"), ("odd", "png"), ("e.gif", "gif")])
def test_image_file_becomes_a_data_url(folder: str, name: str, kind: str) -> None:
    media = read_image(name, folder)
    assert (media.data, media.format, media.path) == ("", kind, os.path.join(folder, name))
    (image,) = MediaFiles().inlined(Turn(images=(media,))).images
    assert image.data == f"data:image/{kind};base64,{base64.b64encode(FILES[name]).decode()}"
    assert image.path is None


@pytest.mark.parametrize(("name", "kind"), [("c.wav", "wav"), ("d.mp3", "mp3")])
def test_audio_file_becomes_base64(folder: str, name: str, kind: str) -> None:
    (audio,) = MediaFiles().inlined(Turn(audios=(read_audio(name, folder),))).audios
    assert audio == Media(base64.b64encode(FILES[name]).decode(), kind)


def test_absolute_paths_and_file_urls_are_read(folder: str) -> None:
    assert read_image(os.path.join(folder, "a.png"), "/nowhere").path == os.path.join(folder, "a.png")
    assert read_image("file://" + os.path.join(folder, "a.png"), "").path == os.path.join(folder, "a.png")


def test_path_is_relative_to_the_working_directory_first(folder: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    working_directory = tmp_path_factory.mktemp("cwd")
    (working_directory / "a.png").write_bytes(JPEG)
    before = os.getcwd()
    os.chdir(working_directory)
    try:
        assert read_image("a.png", folder).format == "jpeg"
    finally:
        os.chdir(before)


def test_urls_are_kept() -> None:
    assert read_image("https://host/a.png?x=1", "") == Media("https://host/a.png?x=1")
    assert read_audio("http://host/b.MP3", "") == Media("http://host/b.MP3", "mp3")
    assert read_audio("http://host/stream", "") == Media("http://host/stream", "wav")


def test_data_urls_are_kept() -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert read_image(url, "") == Media(url, "png")
    audio = base64.b64encode(WAV).decode()
    assert read_audio("data:audio/wav;base64," + audio, "") == Media(audio, "wav")
    assert read_audio("wav," + audio, "") == Media(audio, "wav")
    assert read_audio("mp3," + base64.b64encode(MP3).decode(), "").format == "mp3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("notes.png", "'notes.png' is not an image (PNG, JPEG, WebP, GIF, BMP or TIFF)"),
        ("c.wav", "'c.wav' is not an image"),
        ("none.png", "'none.png' cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("a\0b", "the name has a null character in it"),
        ("data:text/plain;base64,aGVsbG8=", "is not the data URL of an image"),
        ("data:image/png,raw", "is not the data URL of an image"),
        ("data:image/png;base64,????", "is not followed by base64"),
        ("data:image/png;base64,aGVsbG8=", "does not hold an image"),
    ],
)
def test_invalid_image_is_refused(folder: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"'|the data URL") as caught:
        read_image(text, folder)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.png", "'a.png' is not audio (WAV, MP3, FLAC, Ogg or M4A)"),
        ("none.wav", "'none.wav' cannot be read"),
        ("wav,????", "is not followed by base64"),
        ("wav,", "does not hold audio"),
        ("data:audio/wav;base64,aGVsbG8=", "does not hold audio"),
    ],
)
def test_invalid_audio_is_refused(folder: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"'|the data URL") as caught:
        read_audio(text, folder)
    assert reason in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_refused(folder: str) -> None:
    os.chmod(os.path.join(folder, "a.png"), 0)
    with pytest.raises(ValueError, match="Permission denied"):
        read_image("a.png", folder)


def test_single_turn_file_may_have_media(folder: str) -> None:
    lines = [
        {"text": "One", "image": "a.png"},
        {"images": ["a.png", {"name": "more", "contents": ["https://h/x.png"]}], "audio": "c.wav"},
        {"audios": ["c.wav", "d.mp3"]},
    ]
    path = os.path.join(folder, "prompts.jsonl")
    Path(path).write_text("\n".join(json.dumps(line) for line in lines))
    turns = [each.turns[0] for each in read_whole(SingleTurn(path, InputSettings()))]
    assert [(len(turn.texts), len(turn.images), len(turn.audios)) for turn in turns] == [
        (1, 1, 0),
        (0, 2, 1),
        (0, 0, 2),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"text": "x", "image": "notes.png"}, "'notes.png' is not an image (PNG, JPEG, WebP, GIF, BMP or TIFF)"),
        ({"text": "x", "audio": "a.png"}, "'a.png' is not audio (WAV, MP3, FLAC, Ogg or M4A)"),
        ({"image": "a.png", "images": ["a.png"]}, "it has both 'image' and 'images'; keep one"),
        ({"audio": "c.wav", "audios": []}, "it has both 'audio' and 'audios'; keep one"),
        ({"text": "x", "image": ""}, "'image' is empty"),
        ({"text": "x", "audios": ["c.wav", ""]}, "'audio' is empty"),
        ({"image": 5}, "'image' should be a string, not a whole number"),
    ],
)
def test_error_names_file_and_line(folder: str, line: dict[str, object], reason: str) -> None:
    path = os.path.join(folder, "prompts.jsonl")
    Path(path).write_text('{"text": "fine"}\n' + json.dumps(line))
    with pytest.raises(UserError) as caught:
        read_whole(SingleTurn(path, InputSettings()))
    assert str(caught.value) == f"prompts.jsonl:2: {reason}"


def test_cache_is_bounded_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    encoded = files._read_base64
    monkeypatch.setattr(files, "_read_base64", lambda path: opened.append(os.path.basename(path)) or encoded(path))
    for name, size in {"a": 3000, "b": 3000, "c": 3000, "huge": 30_000}.items():
        (tmp_path / name).write_bytes(WAV[:44].ljust(size, b"\0"))
    media = MediaFiles(max_bytes=8000)  # the base64 text of two small files
    for name in ("a", "b", "a", "c", "a", "b", "huge", "huge"):
        (audio,) = media.inlined(Turn(audios=(read_audio(name, str(tmp_path)),))).audios
        assert base64.b64decode(audio.data) == (tmp_path / name).read_bytes()
    assert opened == ["a", "b", "c", "b", "huge", "huge"]
