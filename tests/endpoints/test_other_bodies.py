"""Request bodies of the endpoints besides the OpenAI text APIs, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.datasets.conversation import Media, Turn
from penstock.endpoints.base import NO_HISTORY, History
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

HELLO = Turn(texts=("Hello!",))
LIMITED = Turn(texts=("Hello!",), output_tokens=5)
RANKING = Turn(texts=("q", "a", "b"))
NAMED = Turn(texts=("a", "b", "q"), text_names=("passages", "passages", "query"))
PNG = Media("data:image/png;base64,iVBORw0KGgo=", "png")


def body(name: str, turn: Turn, history: History = NO_HISTORY, **settings: Any) -> str:
    made = endpoint(name)
    return made.encode(made.build(turn, "m", EndpointSettings(type=name, **settings), history)).decode()


@pytest.mark.parametrize(
    ("name", "turn", "settings", "expected"),
    [
        ("embeddings", HELLO, {}, '{"model":"m","input":["Hello!"]}'),
        (
            "embeddings",
            Turn(texts=("a", "b"), extra={"user": "u"}),
            {"extra": {"dimensions": 8}},
            '{"model":"m","input":["a","b"],"dimensions":8,"user":"u"}',
        ),
        ("nim_rankings", RANKING, {}, '{"model":"m","query":{"text":"q"},"passages":[{"text":"a"},{"text":"b"}]}'),
        (
            "cohere_rankings",
            NAMED,
            {"extra": {"top_n": 1}},
            '{"model":"m","query":"q","documents":["a","b"],"top_n":1}',
        ),
        ("hf_tei_rankings", RANKING, {}, '{"query":"q","texts":["a","b"]}'),
        (
            "hf_tei_rankings",
            Turn(texts=("q", "a"), text_names=("1", "2")),
            {},
            '{"query":"q","texts":["a"]}',
        ),
        (
            "messages",
            LIMITED,
            {"streaming": True},
            '{"model":"m","messages":[{"role":"user","content":"Hello!"}],"max_tokens":5,"stream":true}',
        ),
        (
            "messages",
            Turn(texts=("Look",), images=(PNG, Media("http://host/a.png"))),
            {"extra": {"temperature": 0}},
            (
                '{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Look"},{"type":"image","source":'
                '{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}},{"type":"image","source":{"type":"url",'
                '"url":"http://host/a.png"}}]}],"max_tokens":1024,"stream":false,"temperature":0}'
            ),
        ),
        (
            "huggingface_generate",
            LIMITED,
            {"extra": {"top_k": 3}},
            '{"inputs":"Hello!","parameters":{"max_new_tokens":5,"top_k":3}}',
        ),
        (
            "huggingface_generate",
            HELLO,
            {"server_token_count": True},
            '{"inputs":"Hello!","parameters":{"details":true}}',
        ),
        (
            "image_generation",
            HELLO,
            {"extra": {"n": 2}},
            '{"prompt":"Hello!","model":"m","response_format":"b64_json","n":2}',
        ),
        (
            "image_generation",
            HELLO,
            {"streaming": True},
            '{"prompt":"Hello!","model":"m","response_format":"b64_json","n":1,"stream":true}',
        ),
    ],
)
def test_body_has_the_documented_form(name: str, turn: Turn, settings: dict[str, Any], expected: str) -> None:
    assert body(name, turn, **settings) == expected


def test_system_prompt_and_earlier_turns_are_in_a_message_body() -> None:
    messages = endpoint("messages")
    history = History("Be brief.", "I am Ann.")
    reply = Reply()
    reply.outputs = ["Hi"]
    messages.remember(history, HELLO, reply, EndpointSettings())
    assert body("messages", Turn(texts=("Bye",)), history) == (
        '{"model":"m","messages":[{"role":"user","content":"I am Ann."},{"role":"user","content":"Hello!"},'
        '{"role":"assistant","content":"Hi"},{"role":"user","content":"Bye"}],"max_tokens":1024,"stream":false,'
        '"system":"Be brief."}'
    )


def test_transcription_is_a_form_with_the_bytes_of_the_clip() -> None:
    transcription = endpoint("audio_transcription")
    turn = Turn(audios=(Media("UklGRv8=", "wav"),))
    built = transcription.build(turn, "m", EndpointSettings(extra={"temperature": 0, "language": "en"}))
    encoded = transcription.encode(built)
    type_, _, boundary = transcription.declaration.content_type.partition("; boundary=")
    assert type_ == "multipart/form-data"
    separator = f"--{boundary}".encode()
    assert encoded == b"\r\n".join(
        [
            separator,
            b'Content-Disposition: form-data; name="file"; filename="audio.wav"',
            b"Content-Type: audio/wav",
            b"",
            b"RIFF\xff",
            separator,
            b'Content-Disposition: form-data; name="model"',
            b"",
            b"m",
            separator,
            b'Content-Disposition: form-data; name="temperature"',
            b"",
            b"0",
            separator,
            b'Content-Disposition: form-data; name="language"',
            b"",
            b"en",
            separator + b"--",
            b"",
        ]
    )
    assert transcription.decode(encoded) == built | {"temperature": "0"}


@pytest.mark.parametrize(
    ("name", "turn", "message"),
    [
        (
            "nim_rankings",
            HELLO,
            "A ranking needs one query and at least one passage, and an entry of the data has 1 and 0",
        ),
        ("hf_tei_rankings", Turn(texts=("a",), text_names=("passages",)), "has 0 and 1"),
        ("audio_transcription", HELLO, "sends one audio clip in each request, not 0; give --audio-length-mean"),
        (
            "audio_transcription",
            Turn(audios=(Media("http://h/a.wav", "wav"),)),
            "sends the bytes of a clip, not its URL",
        ),
    ],
)
def test_turn_that_does_not_fit_is_refused(name: str, turn: Turn, message: str) -> None:
    with pytest.raises(UserError) as refused:
        body(name, turn)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "sent", "texts"),
    [
        ("embeddings", {"input": ["a", "b"]}, ["a", "b"]),
        ("nim_rankings", {"query": {"text": "q"}, "passages": [{"text": "a"}]}, ["q", "a"]),
        ("cohere_rankings", {"query": "q", "documents": ["a", {"text": "b"}]}, ["q", "a", "b"]),
        ("hf_tei_rankings", {"query": "q", "texts": ["a"]}, ["q", "a"]),
        ("messages", {"system": "s", "messages": [{"content": [{"type": "text", "text": "a"}]}]}, ["s", "a"]),
        ("huggingface_generate", {"inputs": "a"}, ["a"]),
        ("image_generation", {"prompt": "a"}, ["a"]),
        ("audio_transcription", {}, []),
    ],
)
def test_texts_of_a_body_that_count_as_input(name: str, sent: dict[str, Any], texts: list[str]) -> None:
    assert endpoint(name).input_text(sent) == texts
