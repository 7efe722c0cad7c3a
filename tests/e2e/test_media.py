"""Synthetic images and audio, and media files, with the real command."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image

from penstock.datasets.media.audio import record_mp3, record_wav
from penstock.datasets.media.images import draw_jpeg, draw_png
from support.programs import MockServer, Program

TINY = ("--tokenizer", "builtin", "--random-seed", "1", "--isl", "5", "--request-count", "4")


def parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    (message,) = body.get("input") or body["messages"]
    content: list[dict[str, Any]] = message["content"]
    return content


def picture(url: str) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    image.load()
    return image


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_synthetic_media_can_be_decoded(kind: str, mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(tokens=3)
    run = program.profile(
        server.url,
        *("--endpoint-type", kind, *TINY, "--image-width-mean", 40, "--image-height-mean", 30, "--image-batch-size", 2),
        *("--image-format", "png", "--audio-length-mean", 0.5, "--audio-format", "mp3", "--audio-sample-rates", 16),
        texts=None,
    )
    assert run.status == 0, run
    assert {(line["images"], line["audios"]) for line in server.logged_requests()} == {(2, 1)}
    urls = []
    for body in run.inputs:
        text, first, second, sound = parts(body)
        assert text["type"] == ("input_text" if kind == "responses" else "text")
        for image in (first, second):
            urls.append(image["image_url"] if kind == "responses" else image["image_url"]["url"])
        assert sound["type"] == "input_audio"
        assert sound["input_audio"]["format"] == "mp3"
        info = soundfile.info(io.BytesIO(base64.b64decode(sound["input_audio"]["data"])))
        assert (info.format, info.samplerate) == ("MP3", 16000)
    assert len(set(urls)) == 8
    assert {(picture(url).format, picture(url).size) for url in urls} == {("PNG", (40, 30))}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(mock: Callable[..., MockServer], program: Program) -> None:
    url = mock(tokens=3).url
    flags = (*TINY, "--image-width-mean", 20, "--image-height-mean", 20, "--image-format", "random")
    more = ("--audio-length-mean", 0.2, "--audio-depths", "8,24", "--audio-sample-rates", "8,16")
    runs = [program.profile(url, "--endpoint-type", "responses", *flags, *more, texts=None) for _ in range(2)]
    assert runs[0].text("inputs.json") == runs[1].text("inputs.json")
    for body in runs[0].inputs:
        with wave.open(io.BytesIO(base64.b64decode(parts(body)[2]["input_audio"]["data"]))) as file:
            assert file.getframerate() in (8000, 16000)
            assert file.getsampwidth() in (1, 3)


@pytest.fixture
def media(program: Program) -> Path:
    (program.folder / "cat.png").write_bytes(draw_png("cat", 12, 9))
    (program.folder / "dog.jpg").write_bytes(draw_jpeg("dog", 12, 9))
    (program.folder / "word.wav").write_bytes(record_wav("word", 0.1, 8000, 16, 1))
    (program.folder / "song.mp3").write_bytes(record_mp3("song", 0.2, 16000, 1))
    (program.folder / "notes.png").write_text("not an image")
    return program.folder


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_media_of_files_are_sent_unchanged(
    kind: str, media: Path, mock: Callable[..., MockServer], program: Program
) -> None:
    data_url = "data:image/png;base64," + base64.b64encode((media / "cat.png").read_bytes()).decode()
    lines = [
        {"text": "Which animal?", "image": "cat.png"},
        {"text": "Which?", "images": ["dog.jpg", "https://host.example/cat.png", data_url]},
        {"text": "What is said?", "audio": "word.wav"},
        {"audios": ["word.wav", "song.mp3"], "image": str(media / "dog.jpg")},
    ]
    file = media / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    server = mock(tokens=3)
    run = program.profile(
        server.url, "--endpoint-type", kind, "--input-file", file, "--tokenizer", "builtin", texts=None
    )
    assert run.status == 0, run
    assert [(line["images"], line["audios"]) for line in server.logged_requests()] == [(1, 0), (3, 0), (0, 1), (1, 2)]

    def url(part: dict[str, Any]) -> str:
        image = part["image_url"]
        return str(image if kind == "responses" else image["url"])

    first, second, third, fourth = (parts(body) for body in run.inputs)
    assert base64.b64decode(url(first[1]).partition(",")[2]) == (media / "cat.png").read_bytes()
    assert [url(part)[:22] for part in second[1:]] == [
        "data:image/jpeg;base64",
        "https://host.example/c",
        "data:image/png;base64,",
    ]
    assert base64.b64decode(third[1]["input_audio"]["data"]) == (media / "word.wav").read_bytes()
    assert [part.get("input_audio", {}).get("format") for part in fourth] == [None, "wav", "mp3"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"text": "x", "image": "notes.png"}, "prompts.jsonl:2: 'notes.png' is not an image"),
        ({"text": "x", "audio": "cat.png"}, "prompts.jsonl:2: 'cat.png' is not audio"),
        ({"text": "x", "image": "gone.png"}, "prompts.jsonl:2: 'gone.png' cannot be read: No such file or directory"),
        ({"images": []}, "prompts.jsonl:2: it has no content"),
    ],
)
def test_invalid_media_are_reported_before_the_first_request(
    line: dict[str, Any], sentence: str, media: Path, program: Program, mock: Callable[..., MockServer]
) -> None:
    server = mock()
    (media / "prompts.jsonl").write_text('{"text": "fine"}\n' + json.dumps(line))
    run = program.profile(
        server.url,
        "--endpoint-type",
        "responses",
        "--input-file",
        media / "prompts.jsonl",
        "--tokenizer",
        "builtin",
        texts=None,
    )
    assert run.status == 2, run
    assert sentence in run.err
    assert server.logged_requests() == []


def test_images_are_refused_for_completions(media: Path, program: Program) -> None:
    (media / "prompts.jsonl").write_text('{"text": "x", "image": "cat.png"}\n')
    run = program.profile(
        "mock://", "--endpoint-type", "completions", "--input-file", media / "prompts.jsonl", texts=None
    )
    assert run.status == 2
    assert "--endpoint-type completions cannot carry" in run.err


def test_image_url_refused_by_the_server_is_a_failed_request_with_its_message(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    file = program.folder / "prompts.jsonl"
    file.write_text('{"text": "x", "image": "https://nowhere.invalid/cat.png"}\n{"text": "fine"}\n')
    run = program.profile(
        *(mock(tokens=3).url, "--endpoint-type", "responses", "--input-file", file, "--tokenizer", "builtin"),
        texts=None,
        command="penstock",
    )
    assert run.status == 1, run
    (error,) = run.errors()
    assert (error["code"], error["count"]) == (400, 1)
    assert "the image cannot be downloaded from https://nowhere.invalid/cat.png" in error["message"]


def test_every_turn_of_a_conversation_has_an_image(mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(tokens=3)
    run = program.profile(
        server.url,
        *("--endpoint-type", "responses", "--streaming", "--tokenizer", "builtin", "--isl", 5, "--conversation-num", 2),
        *("--conversation-turn-mean", 2, "--image-width-mean", 16, "--image-height-mean", 16),
        texts=None,
    )
    assert run.status == 0, run
    assert sorted(line["images"] for line in server.logged_requests()) == [1, 1, 2, 2]
