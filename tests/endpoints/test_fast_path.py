"""The fast reading of repetitive streams finds what the reading event by event finds, or leaves the stream to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.endpoints import openai_streams
from penstock.endpoints.reply import Reply
from support.chat_streams import ROLE, STOP, chunk, event, say, stream, text_chunk, usage

CHAT, COMPLETIONS = b'"content":', b'"text":'

words = st.text(
    st.sampled_from('ab "\\/\n\r\t{}[]:,.\u2028é日🙂\x00\x7f') | st.characters(exclude_categories=["Cs"]), max_size=8
)
odd = st.sampled_from(
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
texts = words | odd


def chat_events(draw: st.DrawFn, text: str) -> bytes:
    kind = draw(
        st.sampled_from(["say"] * 12 + ["other index", "finish", "usage", "reasoning", "tool", "empty", "model"])
    )
    found = {
        "say": say(text),
        "other index": say(text, index=1),
        "finish": say(text, finish="stop"),
        "usage": say(text, usage={"completion_tokens": 1}),
        "reasoning": chunk({"content": "", "reasoning_content": text}),
        "tool": chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
        "empty": say(""),
        "model": say(text, model="another"),
    }[kind]
    return event(json.dumps(found, ensure_ascii=draw(st.booleans()), separators=(",", ":")))


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
    for place, extra in between:
        parts.insert(min(place, len(parts)), extra)
    tail = draw(st.sampled_from([b"", event(STOP), event(STOP) + event(usage()), event(usage())]))
    body = b"".join(parts) + tail + (b"data: [DONE]\n\n" if draw(st.booleans()) else b"")
    cut = draw(st.integers(0, 60))
    return body[:-cut] if cut and draw(st.integers(0, 9)) == 0 else body


def facts(reply: Reply) -> dict[str, object]:
    return {name: getattr(reply, name) for name in Reply.__slots__}


def agree(body: bytes, field: bytes) -> bool:
    """Whether the fast way took it; if so, both ways must have found the same."""
    fast = openai_streams._repetitive(body, field, True)
    if fast is None:
        return False
    slow = openai_streams._by_event(body)
    assert facts(fast) == facts(slow)
    untimed = openai_streams._repetitive(body, field, False)
    assert untimed is not None
    assert (untimed.texts, untimed.outputs, untimed.finish) == (slow.texts, slow.outputs, slow.finish)
    return True


@settings(max_examples=600)
@given(chat_streams())
@example(stream(ROLE, say("a"), say("b"), say("c", index=1), say("d", index=1), STOP))
@example(stream(say("x", index=1), say("a"), say("b"), STOP))
def test_both_ways_agree_on_chat_streams(body):
    agree(body, CHAT)


@given(st.lists(texts, max_size=8), st.booleans(), st.sampled_from([[], [usage()]]))
def test_both_ways_agree_on_completions_streams(found, ascii_only, tail):
    parts = [event(json.dumps(text_chunk(text), ensure_ascii=ascii_only)) for text in found]
    agree(stream(*parts, text_chunk("", finish="stop"), *tail), COMPLETIONS)


def is_common(text: str) -> bool:
    return bool(text) and not text.endswith("\\")


@given(st.lists(texts.filter(is_common), min_size=2, max_size=20), st.booleans())
def test_the_common_stream_takes_the_fast_way_whatever_its_words(found, ascii_only):
    parts = [event(json.dumps(say(text), ensure_ascii=ascii_only, separators=(",", ":"))) for text in found]
    body = stream(ROLE, *parts, STOP, usage())
    assert agree(body, CHAT)
    reply = openai_streams.read_choices(body, CHAT, timed=True)
    assert reply.texts == found
    assert reply.outputs == ["".join(found)]
    assert reply.finish == ["stop"]


def replaced(first: str, second: str, third: str) -> bytes:
    """Three events whose texts are put in as bytes, so that they need not be JSON."""
    marked = [event(say(mark)) for mark in ("@1", "@2", "@3")]
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
def test_events_that_are_not_json_are_found_out(body):
    """None of these may pass for texts, although the bytes around them are like the others'."""
    fast = openai_streams._repetitive(body, CHAT, True)
    slow = openai_streams._by_event(body)
    assert fast is None or facts(fast) == facts(slow)
    assert facts(openai_streams.read_choices(body, CHAT, timed=True)) == facts(slow)


@pytest.mark.parametrize("found", [["Hello"], ["Hello", "Hello"], ["Hello", "Hello", " world"]])
def test_the_words_in_a_log_probability_are_not_taken_for_the_text(found):
    events = []
    for word in found:
        choice = {"index": 0, "logprobs": {"content": [{"token": word}]}, "delta": {"content": word}}
        events.append({"object": "chat.completion.chunk", "choices": [choice]})
    body = stream(ROLE, *events, STOP)
    assert openai_streams.read_choices(body, CHAT, timed=True).texts == found
