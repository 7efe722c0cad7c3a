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
        ("chat_embeddings", HELLO, {}, '{"messages":[{"role":"user","content":"Hello!"}],"model":"m"}'),
        (
            "chat_embeddings",
            Turn(texts=("Look",), images=(PNG,)),
            {"extra": {"encoding_format": "float"}},
            (
                '{"messages":[{"role":"user","content":[{"type":"text","text":"Look"},{"type":"image_url","image_url":'
                '{"url":"data:image/png;base64,iVBORw0KGgo="}}]}],"model":"m","encoding_format":"float"}'
            ),
        ),
        (
            "nim_embeddings",
            Turn(texts=("Look", "b"), images=(PNG,)),
            {"extra": {"input_type": "passage"}},
            '{"model":"m","input":["Look data:image/png;base64,iVBORw0KGgo=","b"],"input_type":"passage"}',
        ),
        (
            "nim_embeddings",
            Turn(images=(PNG, PNG)),
            {},
            '{"model":"m","input":["data:image/png;base64,iVBORw0KGgo=","data:image/png;base64,iVBORw0KGgo="]}',
        ),
        (
            "image_retrieval",
            Turn(images=(PNG,)),
            {"extra": {"threshold": 0.5}},
            '{"input":[{"type":"image_url","url":"data:image/png;base64,iVBORw0KGgo="}],"threshold":0.5}',
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


def test_system_prompt_is_in_the_messages_of_a_chat_embedding() -> None:
    assert body("chat_embeddings", HELLO, History("Be brief.", "I am Ann.")) == (
        '{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"I am Ann."},'
        '{"role":"user","content":"Hello!"}],"model":"m"}'
    )


@pytest.mark.parametrize(("count", "name"), [(1, "image"), (2, "image[]")])
def test_image_edit_is_a_form_with_the_bytes_of_the_images(count: int, name: str) -> None:
    edit = endpoint("image_edit")
    turn = Turn(texts=("Add snow.",), images=(PNG,) * count)
    built = edit.build(turn, "m", EndpointSettings(extra={"size": "512x512"}))
    encoded = edit.encode(built)
    boundary = edit.declaration.content_type.partition("; boundary=")[2]
    texts = {"prompt": "Add snow.", "model": "m", "response_format": "b64_json", "n": "1", "size": "512x512"}
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in texts.items()]
    head = f'Content-Disposition: form-data; name="{name}"; filename="image.png"\r\nContent-Type: image/png\r\n\r\n'
    parts += [head.encode() + b"\x89PNG\r\n\x1a\n"] * count
    begin = f"--{boundary}".encode()
    assert encoded == b"".join(begin + b"\r\n" + part + b"\r\n" for part in parts) + begin + b"--\r\n"
    assert edit.decode(encoded) == built | {"n": "1"}


def test_image_edit_sends_the_url_of_an_image() -> None:
    edit = endpoint("image_edit")
    built = edit.build(Turn(texts=("a",), images=(Media("http://h/a.png"),)), "m", EndpointSettings())
    assert built["url"] == "http://h/a.png"
    assert "image" not in built


@pytest.mark.parametrize(
    ("name", "turn", "message"),
    [
        (
            "nim_rankings",
            HELLO,
            "A ranking needs one query and at least one passage, and an entry of the data has 1 and 0",
        ),
        ("hf_tei_rankings", Turn(texts=("a",), text_names=("passages",)), "has 0 and 1"),
        (
            "image_edit",
            HELLO,
            "sends images or the URL of one in each request, not 0 images with 0 URLs; give --image-width",
        ),
        ("image_edit", Turn(images=(PNG, Media("http://h/a.png"))), "not 2 images with 1 URLs"),
        ("image_retrieval", HELLO, "image_retrieval sends images; give --image-width-mean"),
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
        ("image_edit", {"prompt": "a"}, ["a"]),
        ("image_retrieval", {}, []),
        ("chat_embeddings", {"messages": [{"role": "user", "content": "a"}]}, ["a"]),
        ("nim_embeddings", {"input": ["a data:image/png;base64,AA", "data:image/png;base64,AA", "b"]}, ["a", "b"]),
        ("audio_transcription", {}, []),
    ],
)
def test_texts_of_a_body_that_count_as_input(name: str, sent: dict[str, Any], texts: list[str]) -> None:
    assert endpoint(name).input_text(sent) == texts
