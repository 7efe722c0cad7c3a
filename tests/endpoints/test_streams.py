"""Streams of chat completions and completions: which forms are accepted, and which are failures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.endpoints.base import endpoint_named as endpoint
from penstock.endpoints.reply import Reply, Usage
from support.chat_streams import DONE, ROLE, STOP, chunk, delta, event, stream, text_chunk, usage

CHAT = endpoint("chat")
COMPLETIONS = endpoint("completions")


def read(*events, done: bool = True, endpoint=CHAT) -> Reply:
    return endpoint.read_stream(stream(*events, done=done), timed=True)


# -- content ----------------------------------------------------------------------------------------------------------


def test_events_without_text_are_no_tokens():
    reply = read(ROLE, delta(""), delta("Hello"), delta(" world"), delta(""), STOP, usage(3, 2))
    assert reply.texts == ["Hello", " world"]
    assert reply.outputs == ["Hello world"]
    assert reply.finish == ["stop"]
    assert reply.usage == Usage(prompt=3, completion=2, total=5)
    assert reply.model == "m"
    assert reply.done
    assert reply.failure is None
    assert reply.reasoning is None


def test_each_piece_ends_after_its_event():
    events = [ROLE, delta("one"), delta("two"), delta("three"), STOP, usage()]
    body = stream(*events)
    reply = CHAT.read_stream(body, timed=True)
    assert [body[:end] for end in reply.ends] == [stream(*events[:n], done=False) for n in (2, 3, 4)]


def test_completions_stream_is_read():
    reply = read(
        text_chunk("Hello"), text_chunk(" world"), text_chunk("", finish="length"), usage(), endpoint=COMPLETIONS
    )
    assert (reply.texts, reply.outputs, reply.finish) == (["Hello", " world"], ["Hello world"], ["length"])
    assert reply.usage is not None
    assert reply.done
    assert reply.failure is None


def test_finish_reason_may_come_with_the_last_text():
    reply = read(ROLE, delta("Hello"), delta(" world", finish="length"))
    assert (reply.outputs, reply.finish) == (["Hello world"], ["length"])


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_content_and_marked(key):
    reply = read(ROLE, chunk({key: "Let me"}), chunk({key: " think"}), delta("Four"), delta("!"), STOP)
    assert reply.texts == ["Let me", " think", "Four", "!"]
    assert reply.reasoning == [True, True, False, False]
    assert reply.outputs == ["Four!"]
    assert reply.reasonings == ["Let me think"]


def test_reasoning_and_text_in_one_event_are_two_pieces():
    reply = read(chunk({"reasoning_content": "hm", "content": "yes"}), STOP)
    assert reply.texts == ["hm", "yes"]
    assert reply.reasoning == [True, False]
    assert reply.ends[0] == reply.ends[1]


def test_reply_of_only_reasoning_is_no_failure():
    reply = read(ROLE, chunk({"reasoning_content": "hm"}), chunk(finish="length"))
    assert (reply.outputs, reply.reasonings, reply.finish) == ([], ["hm"], ["length"])
    assert reply.failure is None


def call_delta(arguments: str, name: str | None = None, index: int = 0) -> dict:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "function": function}]})


def test_tool_calls_are_content():
    reply = read(ROLE, call_delta("", "look_up"), call_delta('{"q":'), call_delta('"x"}'), chunk(finish="tool_calls"))
    assert reply.texts == ["look_up", '{"q":', '"x"}']
    assert reply.outputs == ['look_up{"q":"x"}']
    assert reply.finish == ["tool_calls"]


def test_function_call_of_the_old_form_is_content():
    calls = [{"name": "look_up", "arguments": ""}, {"arguments": '{"q":'}, {"arguments": '"x"}'}]
    reply = read(ROLE, *[chunk({"function_call": call}) for call in calls], chunk(finish="function_call"))
    assert reply.failure is None
    assert reply.outputs == ['look_up{"q":"x"}']
    assert reply.texts == ["look_up", '{"q":', '"x"}']


def test_text_beside_a_tool_call_is_content():
    delta = {"content": "Let me see. ", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    assert read(ROLE, chunk(delta), STOP).outputs == ["Let me see. f{}"]


def test_text_beside_a_tool_call_is_also_stored_separately():
    """The text may be in repeated chunks, in events with a call, or beside another choice."""
    other = delta("no", index=1)
    reply = read(
        ROLE, delta("Let"), delta(" me"), delta(" see"), other, call_delta("{", "f"), call_delta("}"), delta("."), STOP
    )
    assert reply.content == "Let me see."
    assert reply.items == [{"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert read(ROLE, delta("Let"), delta(" me"), delta(" see"), call_delta("{}", "f"), STOP).content == "Let me see"
    assert read(ROLE, call_delta("{}", "f"), STOP).content == ""


def test_refusal_is_content():
    reply = read(ROLE, chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP)
    assert (reply.texts, reply.outputs) == (["I can", "not."], ["I cannot."])


@pytest.mark.parametrize(
    "events",
    [
        [delta("a"), delta("b", index=1), delta("c"), delta("d", index=1)],
        [delta("a"), delta("c"), delta("b", index=1), delta("d", index=1)],
        [delta("b", index=1), delta("d", index=1), delta("a"), delta("c")],
        [delta("b", index=1), delta("a"), delta("c"), delta("d", index=1)],
    ],
    ids=["alternating", "one after the other", "second choice first", "nested"],
)
def test_each_choice_has_its_own_text(events):
    ends = [chunk(finish="stop"), chunk(index=1, finish="length")]
    reply = read(ROLE, *events, *ends)
    assert reply.outputs == ["ac", "bd"]
    assert reply.finish == ["stop", "length"]
    assert len(reply.texts) == 4


def test_choices_of_one_event_are_separated():
    both = {"object": "chat.completion.chunk", "choices": [{"index": n, "delta": {"content": "ab"[n]}} for n in (0, 1)]}
    reply = read(both, both, STOP)
    assert reply.outputs == ["aa", "bb"]
    assert reply.texts == ["a", "b", "a", "b"]


def test_choices_of_completions_are_separated():
    events = [text_chunk("a"), text_chunk("b", index=1), text_chunk("c"), text_chunk("", finish="stop")]
    assert read(*events, endpoint=COMPLETIONS).outputs == ["ac", "b"]


# -- accepted forms ---------------------------------------------------------------------------------------------------


def test_done_may_be_missing_if_there_is_a_finish_reason():
    reply = read(ROLE, delta("a"), STOP, done=False)
    assert reply.done
    assert reply.failure is None


def test_finish_reason_may_be_missing_if_there_is_done():
    reply = read(ROLE, delta("a"))
    assert (reply.done, reply.finish, reply.failure) == (True, [], None)


def test_reply_without_finish_reason_and_done_is_not_done():
    reply = read(ROLE, delta("a"), delta("b"), done=False)
    assert not reply.done
    assert reply.outputs == ["ab"]


def test_optional_fields_may_be_missing():
    bare = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")]
    reply = read(*bare)
    assert (reply.outputs, reply.failure, reply.done) == (["ab"], None, True)


def test_unknown_fields_are_ignored():
    strange = delta("a", system_fingerprint="fp", service_tier=None, x={"deep": [1, {"content": "no"}]})
    strange["choices"][0]["delta"]["audio"] = {"data": "…"}
    reply = read(ROLE, strange, delta("b"), STOP)
    assert reply.outputs == ["ab"]


def test_log_probabilities_are_not_text():
    events = []
    for word in ("Hello", " world"):
        part = delta(word)
        part["choices"][0]["logprobs"] = {"content": [{"token": word, "logprob": -0.1, "bytes": [1]}], "refusal": None}
        # Some servers send them before the delta.
        part["choices"][0]["delta"] = part["choices"][0].pop("delta")
        events.append(part)
    reply = read(ROLE, *events, STOP)
    assert reply.texts == ["Hello", " world"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_event_names_and_comments_do_not_matter(end):
    body = stream(ROLE, delta("a\nb"), b": ping\n\n", delta("c"), STOP, usage()).replace(
        b"data: ", b"event: message\ndata: "
    )
    reply = CHAT.read_stream(body.replace(b"\n", end.encode()), timed=True)
    assert reply.texts == ["a\nb", "c"]
    assert (reply.finish, reply.done, reply.failure) == (["stop"], True, None)
    assert reply.usage is not None


def test_last_blank_line_may_be_missing():
    reply = CHAT.read_stream(stream(ROLE, delta("a"), delta("b"), STOP).rstrip(b"\n"), timed=True)
    assert (reply.outputs, reply.done, reply.failure) == (["ab"], True, None)


def test_empty_events_are_ignored():
    reply = read(ROLE, delta("a"), b"data:\n\n", b"data: \n\n", delta("b"), STOP)
    assert (reply.outputs, reply.failure) == (["ab"], None)
    body = stream(ROLE, delta("a"), b"data:\n\n", delta("b"))
    assert body[: CHAT.read_stream(body, timed=True).ends[1]] == stream(
        ROLE, delta("a"), b"data:\n\n", delta("b"), done=False
    )


def test_usage_may_follow_done():
    body = stream(ROLE, delta("a"), STOP, DONE, usage(7, 1), done=False)
    reply = CHAT.read_stream(body, timed=True)
    assert reply.done
    assert reply.failure is None
    assert reply.usage is not None
    assert reply.usage.prompt == 7


def test_end_offsets_are_right_after_a_done_that_is_not_last():
    events = [ROLE, delta("a"), STOP, DONE, delta("b", index=1), chunk(index=1, finish="stop")]
    body = stream(*events)
    assert body[: CHAT.read_stream(body, timed=True).ends[1]] == stream(*events[:5], done=False)


def test_last_usage_counts():
    assert read(delta("a", usage={"completion_tokens": 1}), delta("b", usage={"completion_tokens": 2})).usage == Usage(
        completion=2
    )


@pytest.mark.parametrize(
    ("usage_object", "expected"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, Usage(1, 2, 3)),
        ({"input_tokens": 1, "output_tokens": 2}, Usage(1, 2)),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": None}},
            Usage(None, 9, None, 4),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}, Usage(5, cache_read=3)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, Usage(5)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 2}, Usage(5, cache_read=2)),
        ({"prompt_tokens": "5", "completion_tokens": 2}, Usage(None, 2)),
        ({"prompt_tokens": 5.5, "completion_tokens": True, "total_tokens": 7}, Usage(None, None, 7)),
        ({"prompt_tokens": {}, "completion_tokens": -1, "total_tokens": 10**30, "x": 1}, None),
        ({}, None),
    ],
)
def test_usage_is_read_under_any_name(usage_object, expected):
    assert read(ROLE, delta("a"), STOP, {"choices": [], "usage": usage_object}).usage == expected


WRONG_TYPES = {
    "content in parts": (chunk({"content": [{"type": "text", "text": "b"}]}), "ab"),
    "content is a number": (chunk({"content": 5}), "a"),
    "content is an object": (chunk({"content": {"b": 1}}), 'a{"b":1}'),
    "delta is a text": (chunk("b"), "a"),
    "delta is null": ({"choices": [{"index": 0, "delta": None}]}, "a"),
    "choices is null": ({"choices": None}, "a"),
    "choices is a number": ({"choices": 5}, "a"),
    "choices is an object": ({"choices": {"index": 0, "delta": {"content": "b"}}}, "a"),
    "choices is a text": ({"choices": "none"}, "a"),
    "a choice is null": ({"choices": [None]}, "a"),
    "index is a text": (delta("b", index="0"), "ab"),
    "index is a float": (delta("b", index=0.0), "ab"),
    "tool_calls is an object": (chunk({"content": "b", "tool_calls": {"function": {"name": "f"}}}), "ab"),
    "tool_calls is a number": (chunk({"content": "b", "tool_calls": 7}), "ab"),
    "a tool call is null": (chunk({"content": "b", "tool_calls": [None]}), "ab"),
    "arguments are an object": (
        chunk({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}),
        'af{"x":1}',
    ),
    "usage is a list": (delta("b", usage=[1]), "ab"),
    "usage is a text": (delta("b", usage="none"), "ab"),
    "usage is empty": (delta("b", usage={}), "ab"),
    "a count is an object": (delta("b", usage={"prompt_tokens": {}, "completion_tokens_details": 5}), "ab"),
    "model is a number": (delta("b", model=4), "ab"),
    "object is null": (delta("b", object=None), "ab"),
    "the event is a list": ([1, 2], "a"),
    "the event is a number": (5, "a"),
    "the event is null": ("null", "a"),
}


@pytest.mark.parametrize(("wrong", "text"), WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_field_of_wrong_type_does_not_affect_other_fields(wrong, text):
    reply = read(ROLE, delta("a"), wrong, delta("c"), delta("d"), STOP)
    assert reply.outputs == [text + "cd"]
    assert (reply.failure, reply.finish, reply.done) == (None, ["stop"], True)


def test_lone_surrogate_is_no_failure():
    """Some servers split a character into two surrogates and escape each half separately."""
    halves = [event('{"choices":[{"index":0,"delta":{"content":"' + half + '"}}]}') for half in (r"\ud83d", r"\ude42")]
    reply = read(ROLE, delta("a"), *halves, delta("b"), STOP)
    assert reply.failure is None
    assert reply.outputs[0].startswith("a")
    assert reply.outputs[0].endswith("b")
    assert len(reply.texts) == 4
    reply.outputs[0].encode()  # the log can store it


# -- failures ---------------------------------------------------------------------------------------------------------

ERRORS = {
    "OpenAI": ({"error": {"message": "out of memory", "type": "server_error", "code": 500}}, "server_error", 500),
    "a code in words": ({"error": {"message": "out of memory", "code": "oom"}}, "oom", None),
    "a text": ({"error": "out of memory"}, "", None),
    "vLLM, older form": (
        {"object": "error", "message": "out of memory", "type": "InternalServerError", "code": 500},
        "InternalServerError",
        500,
    ),
    "beside choices": ({"choices": [], "error": {"message": "out of memory"}}, "", None),
    "with a type": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "out of memory"}},
        "overloaded",
        None,
    ),
    "a list": ({"error": ["out of memory"]}, "", None),
    "without a message": ({"error": {"detail": "out of memory"}}, "", None),
}


@pytest.mark.parametrize(("error", "also", "code"), ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("done", [True, False])
def test_error_object_is_a_failure_with_its_cause(error, also, code, done):
    reply = read(ROLE, delta("a"), delta("b"), error, done=done)
    assert reply.failure is not None
    assert (reply.failure.type, reply.failure.owner) == ("ErrorObject", "server")
    assert "out of memory" in reply.failure.message
    assert also in reply.failure.message
    assert reply.failure.code == code
    assert reply.outputs == ["ab"]


@pytest.mark.parametrize("error", [None, "", {}, [], False])
def test_empty_error_field_is_no_error(error):
    reply = read(ROLE, delta("a", error=error), delta("b", error=error), STOP)
    assert (reply.failure, reply.outputs) == (None, ["ab"])


@pytest.mark.parametrize(
    "data", ['{"message":"out of memory"}', "out of memory", '{"error":{"message":"out of memory"}}']
)
def test_error_event_is_a_failure_with_its_cause(data):
    reply = read(ROLE, delta("a"), delta("b"), event(data, "error"))
    assert reply.failure is not None
    assert reply.failure.type == "ErrorEvent"
    assert "out of memory" in reply.failure.message
    assert reply.outputs == ["ab"]


MALFORMED = {
    "cut": '{"choices":[{"index":0,"delta":{"cont',
    "not JSON": "oops",
    "two objects": '{"choices":[{"delta":{"content":"x"}}]},{"choices":[{"delta":{"content":"y"}}]}',
    "a comma": ",",
    "an open string": '{"choices":[{"index":0,"delta":{"content":"x},"finish_reason":null}]}',
    "a wrong type, then cut": '{"choices": 5, "usage"',
    "bytes that are no text": b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n',
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED.keys())
def test_event_that_is_not_json_is_a_failure(bad):
    for events in (
        [ROLE, delta("a"), delta("b"), bad],
        [ROLE, delta("a"), delta("b"), bad, delta("c"), STOP],
        [bad, STOP],
    ):
        reply = read(*events)
        assert reply.failure is not None, events
        assert (reply.failure.type, reply.failure.owner) == ("MalformedEvent", "server")
    assert reply.outputs == []
    assert read(ROLE, delta("a"), delta("b"), bad).outputs == ["ab"]


def test_long_malformed_event_is_quoted_in_part():
    reply = read(ROLE, delta("a"), "x" * 10_000)
    assert reply.failure is not None
    assert len(reply.failure.message) < 300


def test_truncated_stream_is_never_complete():
    events = [ROLE, delta('He said "no"\n'), delta(" 🙂 wörld"), delta("!")]
    body = stream(*events, STOP, usage())
    last = len(stream(*events, STOP, done=False).rstrip(b"\n"))
    for cut in range(len(body)):
        reply = CHAT.read_stream(body[:cut], timed=True)
        whole = reply.failure is None and reply.done
        assert whole == (cut >= last and reply.failure is None), cut
        if cut < last:
            assert not whole, cut


# -- random input -----------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "index",
                    "finish_reason",
                    "usage",
                    "error",
                    "message",
                    "object",
                    "model",
                    "text",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "reasoning_content",
                    "prompt_tokens",
                    "completion_tokens_details",
                    "reasoning_tokens",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(anything, max_size=4))
def test_any_json_is_read_without_an_exception(values):
    for api in (CHAT, COMPLETIONS):
        reply = read(ROLE, *[event(json.dumps(value)) for value in values], STOP, endpoint=api)
        assert len(reply.texts) == len(reply.ends)
        assert reply.ends == sorted(reply.ends)
        for text in [*reply.outputs, *reply.reasonings, *reply.finish]:
            text.encode()
        whole = api.read_body(json.dumps(values[0] if values else None).encode())
        assert all(isinstance(text, str) for text in whole.outputs)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_without_an_exception(noise, timed):
    for api in (CHAT, COMPLETIONS):
        api.read_stream(noise, timed=timed)
        api.read_stream(stream(ROLE, delta("a"), delta("b")) + noise, timed=timed)
        api.read_body(noise)


def with_usage(piece: dict, completion: int) -> dict:
    return {**piece, "usage": {"prompt_tokens": 3, "completion_tokens": completion}}


def test_usage_of_chunks_is_kept_by_piece():
    reply = read(with_usage(ROLE, 0), with_usage(delta("a b"), 2), with_usage(delta("c d e"), 5), STOP, usage(3, 5))
    assert reply.usage_by_piece == {1: 2, 2: 5}
    assert reply.usage == Usage(prompt=3, completion=5, total=8)
    assert read(ROLE, delta("a"), delta("b"), STOP, usage(3, 2)).usage_by_piece == {}
    assert read(delta("a"), delta("b"), with_usage(delta("c", finish="stop"), 9)).usage_by_piece == {3: 9}
