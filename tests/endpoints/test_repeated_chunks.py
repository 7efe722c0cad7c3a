"""The fast path for repeated chunks gives the same reply as reading event by event, or refuses the stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.endpoints import openai_streams
from penstock.endpoints.reply import Reply
from support.chat_streams import ROLE, STOP, chunk, delta, event, stream, text_chunk, usage

CHAT, COMPLETIONS = b'"content":', b'"text":'

words = st.text(
    st.sampled_from('ab "\\/\n\r\t{}[]:,.\u2028é日🙂\x00\x7f') | st.characters(exclude_categories=["Cs"]), max_size=8
)
json_like = st.sampled_from(
    [
        "content",
        '"content":"',
        '"}}]}',
        "\\",
        '\\"',
        '","',
        "data: ",
        "\n\n",
        "data: [DONE]\n\n",
        '{"content":"x"}',
        "null",
    ]
)
texts = words | json_like


def chat_events(draw: st.DrawFn, text: str) -> bytes:
    kind = draw(
        st.sampled_from(["text"] * 12 + ["other index", "finish", "usage", "reasoning", "tool", "empty", "model"])
    )
    data = {
        "text": delta(text),
        "other index": delta(text, index=1),
        "finish": delta(text, finish="stop"),
        "usage": delta(text, usage={"completion_tokens": 1}),
        "reasoning": chunk({"content": "", "reasoning_content": text}),
        "tool": chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
        "empty": delta(""),
        "model": delta(text, model="another"),
    }[kind]
    return event(json.dumps(data, ensure_ascii=draw(st.booleans()), separators=(",", ":")))


@st.composite
def chat_streams(draw: st.DrawFn) -> bytes:
    parts = [event(ROLE)] if draw(st.booleans()) else []
    parts += [chat_events(draw, text) for text in draw(st.lists(texts, max_size=8))]
    between = draw(
        st.lists(
            st.tuples(
                st.integers(0, 8),
                st.sampled_from(
                    [
                        b": ping\n\n",
                        b"data: [DONE]\n\n",
                        event({"error": {"message": "no"}}),
                        event("{", "error"),
                        event("not json"),
                        b"\n",
                    ]
                ),
            ),
            max_size=1,
        )
    )
    for position, extra in between:
        parts.insert(min(position, len(parts)), extra)
    tail = draw(st.sampled_from([b"", event(STOP), event(STOP) + event(usage()), event(usage())]))
    body = b"".join(parts) + tail + (b"data: [DONE]\n\n" if draw(st.booleans()) else b"")
    cut = draw(st.integers(0, 60))
    return body[:-cut] if cut and draw(st.integers(0, 9)) == 0 else body


def attributes(reply: Reply) -> dict[str, object]:
    return {name: getattr(reply, name) for name in vars(reply)}


def fast_path_agrees(body: bytes, field: bytes) -> bool:
    """Return whether the fast path accepts the body; if so, assert that both ways give the same reply."""
    fast = openai_streams._read_repeated_chunks(body, field, timed=True)
    if fast is None:
        return False
    slow = openai_streams._read_events(body)[0]
    assert attributes(fast) == attributes(slow)
    untimed = openai_streams._read_repeated_chunks(body, field, timed=False)
    assert untimed is not None
    assert (untimed.texts, untimed.outputs, untimed.finish) == (slow.texts, slow.outputs, slow.finish)
    return True


@settings(max_examples=250)
@given(chat_streams())
@example(stream(ROLE, delta("a"), delta("b"), delta("c", index=1), delta("d", index=1), STOP))
@example(stream(delta("x", index=1), delta("a"), delta("b"), STOP))
@example(stream(ROLE, delta("a"), delta("b"), {**delta("c", finish="stop"), "usage": {"completion_tokens": 9}}))
def test_fast_path_agrees_on_chat_streams(body):
    fast_path_agrees(body, CHAT)


@given(st.lists(texts, max_size=8), st.booleans(), st.sampled_from([[], [usage()]]))
def test_fast_path_agrees_on_completions_streams(pieces, ascii_only, tail):
    parts = [event(json.dumps(text_chunk(text), ensure_ascii=ascii_only)) for text in pieces]
    fast_path_agrees(stream(*parts, text_chunk("", finish="stop"), *tail), COMPLETIONS)


def is_accepted(text: str) -> bool:
    return bool(text) and not text.endswith("\\")


@given(st.lists(texts.filter(is_accepted), min_size=2, max_size=20), st.booleans())
def test_common_stream_takes_the_fast_path_whatever_its_texts(pieces, ascii_only):
    parts = [event(json.dumps(delta(text), ensure_ascii=ascii_only, separators=(",", ":"))) for text in pieces]
    body = stream(ROLE, *parts, STOP, usage())
    assert fast_path_agrees(body, CHAT)
    reply = openai_streams.read_choices_stream(body, CHAT, timed=True)
    assert reply.texts == pieces
    assert reply.outputs == ["".join(pieces)]
    assert reply.finish == ["stop"]


def replaced(first: str, second: str, third: str) -> bytes:
    """Build three events whose texts are inserted as bytes, so that they may be invalid JSON."""
    marked = [event(delta(mark)) for mark in ("@1", "@2", "@3")]
    body = stream(ROLE, *marked, STOP)
    for mark, text in ((b"@1", first), (b"@2", second), (b"@3", third)):
        body = body.replace(mark, text.encode())
    return body


@pytest.mark.parametrize(
    "body",
    [
        replaced("a", 'b","c', "d"),
        replaced("a", "b\\", 'c","d'),
        replaced("a", 'b","c', "d\\"),
        replaced("a", 'b"}}]},{"choices":[{"delta":{"content":"c', "d"),
        replaced("a", 'b","role":"x', "d"),
        replaced("a\\", 'b","c', "d"),
        replaced("a", "\x01", "b"),
    ],
)
def test_fast_path_does_not_accept_events_that_are_not_json(body):
    """The bytes around these texts are those of valid events."""
    fast = openai_streams._read_repeated_chunks(body, CHAT, timed=True)
    slow = openai_streams._read_events(body)[0]
    assert fast is None or attributes(fast) == attributes(slow)
    assert attributes(openai_streams.read_choices_stream(body, CHAT, timed=True)) == attributes(slow)


@pytest.mark.parametrize("pieces", [["Hello"], ["Hello", "Hello"], ["Hello", "Hello", " world"]])
def test_tokens_in_log_probabilities_are_not_taken_for_the_text(pieces):
    events = []
    for word in pieces:
        choice = {"index": 0, "logprobs": {"content": [{"token": word}]}, "delta": {"content": word}}
        events.append({"object": "chat.completion.chunk", "choices": [choice]})
    body = stream(ROLE, *events, STOP)
    assert openai_streams.read_choices_stream(body, CHAT, timed=True).texts == pieces
