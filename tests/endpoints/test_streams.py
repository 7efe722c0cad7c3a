"""Streamed replies: liberal in form, strict in substance."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.endpoints.registry import endpoint
from penstock.endpoints.reply import Reply, Usage
from support.chat_streams import DONE, ROLE, STOP, chunk, event, say, stream, text_chunk, usage

CHAT = endpoint("chat")
COMPLETIONS = endpoint("completions")


def read(*events, done: bool = True, of=CHAT) -> Reply:
    return of.read_stream(stream(*events, done=done), timed=True)


# -- what is content --------------------------------------------------------------------------------------------------


def test_role_only_empty_usage_and_done_are_no_tokens():
    reply = read(ROLE, say(""), say("Hello"), say(" world"), say(""), STOP, usage(3, 2))
    assert reply.texts == ["Hello", " world"]
    assert reply.outputs == ["Hello world"]
    assert reply.finish == ["stop"]
    assert reply.usage == Usage(prompt=3, completion=2, total=5)
    assert reply.model == "m"
    assert reply.done
    assert reply.failure is None
    assert reply.reasoning is None


def test_each_piece_ends_behind_its_event():
    events = [ROLE, say("one"), say("two"), say("three"), STOP, usage()]
    body = stream(*events)
    reply = CHAT.read_stream(body, timed=True)
    assert [body[:end] for end in reply.ends] == [stream(*events[:n], done=False) for n in (2, 3, 4)]


def test_a_completions_stream():
    reply = read(text_chunk("Hello"), text_chunk(" world"), text_chunk("", finish="length"), usage(), of=COMPLETIONS)
    assert (reply.texts, reply.outputs, reply.finish) == (["Hello", " world"], ["Hello world"], ["length"])
    assert reply.usage is not None
    assert reply.done
    assert reply.failure is None


def test_a_finish_reason_may_come_with_the_last_text():
    reply = read(ROLE, say("Hello"), say(" world", finish="length"))
    assert (reply.outputs, reply.finish) == (["Hello world"], ["length"])


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_content_and_told_apart(key):
    reply = read(ROLE, chunk({key: "Let me"}), chunk({key: " think"}), say("Four"), say("!"), STOP)
    assert reply.texts == ["Let me", " think", "Four", "!"]
    assert reply.reasoning == [True, True, False, False]
    assert reply.outputs == ["Four!"]
    assert reply.reasonings == ["Let me think"]


def test_reasoning_and_text_in_one_event_are_two_pieces():
    reply = read(chunk({"reasoning_content": "hm", "content": "yes"}), STOP)
    assert reply.texts == ["hm", "yes"]
    assert reply.reasoning == [True, False]
    assert reply.ends[0] == reply.ends[1]


def test_a_reply_of_nothing_but_reasoning():
    reply = read(ROLE, chunk({"reasoning_content": "hm"}), chunk(finish="length"))
    assert (reply.outputs, reply.reasonings, reply.finish) == ([], ["hm"], ["length"])
    assert reply.failure is None


def call(arguments: str, name: str | None = None, index: int = 0) -> dict:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "function": function}]})


def test_tool_calls_are_content():
    reply = read(ROLE, call("", "look_up"), call('{"q":'), call('"x"}'), chunk(finish="tool_calls"))
    assert reply.texts == ["look_up", '{"q":', '"x"}']
    assert reply.outputs == ['look_up{"q":"x"}']
    assert reply.finish == ["tool_calls"]


def test_a_function_call_of_the_old_form_is_content():
    calls = [{"name": "look_up", "arguments": ""}, {"arguments": '{"q":'}, {"arguments": '"x"}'}]
    reply = read(ROLE, *[chunk({"function_call": call}) for call in calls], chunk(finish="function_call"))
    assert reply.failure is None
    assert reply.outputs == ['look_up{"q":"x"}']
    assert reply.texts == ["look_up", '{"q":', '"x"}']


def test_prose_beside_a_tool_call_counts_too():
    delta = {"content": "Let me see. ", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    assert read(ROLE, chunk(delta), STOP).outputs == ["Let me see. f{}"]


def test_prose_beside_a_tool_call_is_known_apart():
    """Whether it comes in the events that the fast way reads, in those of the call, or in another choice."""
    other = say("no", index=1)
    reply = read(ROLE, say("Let"), say(" me"), say(" see"), other, call("{", "f"), call("}"), say("."), STOP)
    assert reply.content == "Let me see."
    assert reply.items == [{"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert read(ROLE, say("Let"), say(" me"), say(" see"), call("{}", "f"), STOP).content == "Let me see"
    assert read(ROLE, call("{}", "f"), STOP).content == ""


def test_a_refusal_is_content():
    reply = read(ROLE, chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP)
    assert (reply.texts, reply.outputs) == (["I can", "not."], ["I cannot."])


@pytest.mark.parametrize(
    "events",
    [
        [say("a"), say("b", index=1), say("c"), say("d", index=1)],
        [say("a"), say("c"), say("b", index=1), say("d", index=1)],
        [say("b", index=1), say("d", index=1), say("a"), say("c")],
        [say("b", index=1), say("a"), say("c"), say("d", index=1)],
    ],
    ids=["in turn", "one after the other", "the second first", "one in the other"],
)
def test_each_choice_has_its_own_text(events):
    ends = [chunk(finish="stop"), chunk(index=1, finish="length")]
    reply = read(ROLE, *events, *ends)
    assert reply.outputs == ["ac", "bd"]
    assert reply.finish == ["stop", "length"]
    assert len(reply.texts) == 4


def test_choices_of_one_event():
    both = {"object": "chat.completion.chunk", "choices": [{"index": n, "delta": {"content": "ab"[n]}} for n in (0, 1)]}
    reply = read(both, both, STOP)
    assert reply.outputs == ["aa", "bb"]
    assert reply.texts == ["a", "b", "a", "b"]


def test_choices_of_completions():
    events = [text_chunk("a"), text_chunk("b", index=1), text_chunk("c"), text_chunk("", finish="stop")]
    assert read(*events, of=COMPLETIONS).outputs == ["ac", "b"]


# -- liberal in form --------------------------------------------------------------------------------------------------


def test_done_may_be_missing_when_there_is_a_finish_reason():
    reply = read(ROLE, say("a"), STOP, done=False)
    assert reply.done
    assert reply.failure is None


def test_a_finish_reason_may_be_missing_when_there_is_done():
    reply = read(ROLE, say("a"))
    assert (reply.done, reply.finish, reply.failure) == (True, [], None)


def test_without_either_the_reply_is_not_done():
    reply = read(ROLE, say("a"), say("b"), done=False)
    assert not reply.done
    assert reply.outputs == ["ab"]


def test_fields_that_are_usually_there_may_be_missing():
    bare = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")]
    reply = read(*bare)
    assert (reply.outputs, reply.failure, reply.done) == (["ab"], None, True)


def test_fields_that_nobody_knows_are_passed_over():
    strange = say("a", system_fingerprint="fp", service_tier=None, x={"deep": [1, {"content": "no"}]})
    strange["choices"][0]["delta"]["audio"] = {"data": "…"}
    reply = read(ROLE, strange, say("b"), STOP)
    assert reply.outputs == ["ab"]


def test_log_probabilities_are_not_the_text():
    events = []
    for word in ("Hello", " world"):
        part = say(word)
        part["choices"][0]["logprobs"] = {"content": [{"token": word, "logprob": -0.1, "bytes": [1]}], "refusal": None}
        # Some servers put them before the delta.
        part["choices"][0]["delta"] = part["choices"][0].pop("delta")
        events.append(part)
    reply = read(ROLE, *events, STOP)
    assert reply.texts == ["Hello", " world"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_event_lines_and_comments_change_nothing(end):
    body = stream(ROLE, say("a\nb"), b": ping\n\n", say("c"), STOP, usage()).replace(
        b"data: ", b"event: message\ndata: "
    )
    reply = CHAT.read_stream(body.replace(b"\n", end.encode()), timed=True)
    assert reply.texts == ["a\nb", "c"]
    assert (reply.finish, reply.done, reply.failure) == (["stop"], True, None)
    assert reply.usage is not None


def test_the_last_blank_line_may_be_missing():
    reply = CHAT.read_stream(stream(ROLE, say("a"), say("b"), STOP).rstrip(b"\n"), timed=True)
    assert (reply.outputs, reply.done, reply.failure) == (["ab"], True, None)


def test_events_without_anything_in_them_are_passed_over():
    reply = read(ROLE, say("a"), b"data:\n\n", b"data: \n\n", say("b"), STOP)
    assert (reply.outputs, reply.failure) == (["ab"], None)
    body = stream(ROLE, say("a"), b"data:\n\n", say("b"))
    assert body[: CHAT.read_stream(body, timed=True).ends[1]] == stream(
        ROLE, say("a"), b"data:\n\n", say("b"), done=False
    )


def test_usage_may_come_behind_done():
    body = stream(ROLE, say("a"), STOP, DONE, usage(7, 1), done=False)
    reply = CHAT.read_stream(body, timed=True)
    assert reply.done
    assert reply.failure is None
    assert reply.usage is not None
    assert reply.usage.prompt == 7


def test_the_times_are_right_behind_a_done_that_is_not_the_end():
    events = [ROLE, say("a"), STOP, DONE, say("b", index=1), chunk(index=1, finish="stop")]
    body = stream(*events)
    assert body[: CHAT.read_stream(body, timed=True).ends[1]] == stream(*events[:5], done=False)


def test_the_last_usage_counts():
    assert read(say("a", usage={"completion_tokens": 1}), say("b", usage={"completion_tokens": 2})).usage == Usage(
        completion=2
    )


@pytest.mark.parametrize(
    ("found", "expected"),
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
def test_usage_under_any_name(found, expected):
    assert read(ROLE, say("a"), STOP, {"choices": [], "usage": found}).usage == expected


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
    "index is a text": (say("b", index="0"), "ab"),
    "index is a float": (say("b", index=0.0), "ab"),
    "tool_calls is an object": (chunk({"content": "b", "tool_calls": {"function": {"name": "f"}}}), "ab"),
    "tool_calls is a number": (chunk({"content": "b", "tool_calls": 7}), "ab"),
    "a tool call is null": (chunk({"content": "b", "tool_calls": [None]}), "ab"),
    "arguments are an object": (
        chunk({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}),
        'af{"x":1}',
    ),
    "usage is a list": (say("b", usage=[1]), "ab"),
    "usage is a text": (say("b", usage="none"), "ab"),
    "usage is empty": (say("b", usage={}), "ab"),
    "a count is an object": (say("b", usage={"prompt_tokens": {}, "completion_tokens_details": 5}), "ab"),
    "model is a number": (say("b", model=4), "ab"),
    "object is null": (say("b", object=None), "ab"),
    "the event is a list": ([1, 2], "a"),
    "the event is a number": (5, "a"),
    "the event is null": ("null", "a"),
}


@pytest.mark.parametrize(("odd", "text"), WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_a_wrong_type_costs_no_more_than_itself(odd, text):
    reply = read(ROLE, say("a"), odd, say("c"), say("d"), STOP)
    assert reply.outputs == [text + "cd"]
    assert (reply.failure, reply.finish, reply.done) == (None, ["stop"], True)


def test_half_a_character_is_no_reason_to_fail():
    """Some servers cut a character in two, and write each half as an escape."""
    halves = [event('{"choices":[{"index":0,"delta":{"content":"' + half + '"}}]}') for half in (r"\ud83d", r"\ude42")]
    reply = read(ROLE, say("a"), *halves, say("b"), STOP)
    assert reply.failure is None
    assert reply.outputs[0].startswith("a")
    assert reply.outputs[0].endswith("b")
    assert len(reply.texts) == 4
    reply.outputs[0].encode()  # and the log can hold it


# -- strict in substance ----------------------------------------------------------------------------------------------

ERRORS = {
    "OpenAI's": ({"error": {"message": "out of memory", "type": "server_error", "code": 500}}, "server_error", 500),
    "a code in words": ({"error": {"message": "out of memory", "code": "oom"}}, "oom", None),
    "a text": ({"error": "out of memory"}, "", None),
    "vLLM's older one": (
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
def test_an_error_object_fails_the_request_with_its_cause(error, also, code, done):
    reply = read(ROLE, say("a"), say("b"), error, done=done)
    assert reply.failure is not None
    assert (reply.failure.type, reply.failure.owner) == ("ErrorObject", "server")
    assert "out of memory" in reply.failure.message
    assert also in reply.failure.message
    assert reply.failure.code == code
    assert reply.outputs == ["ab"]


@pytest.mark.parametrize("error", [None, "", {}, [], False])
def test_an_error_field_with_nothing_in_it_is_no_error(error):
    reply = read(ROLE, say("a", error=error), say("b", error=error), STOP)
    assert (reply.failure, reply.outputs) == (None, ["ab"])


@pytest.mark.parametrize(
    "data", ['{"message":"out of memory"}', "out of memory", '{"error":{"message":"out of memory"}}']
)
def test_an_error_event_fails_the_request_with_its_cause(data):
    reply = read(ROLE, say("a"), say("b"), event(data, "error"))
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
def test_an_event_that_is_not_json_fails_the_request(bad):
    for events in ([ROLE, say("a"), say("b"), bad], [ROLE, say("a"), say("b"), bad, say("c"), STOP], [bad, STOP]):
        reply = read(*events)
        assert reply.failure is not None, events
        assert (reply.failure.type, reply.failure.owner) == ("MalformedEvent", "server")
    assert reply.outputs == []
    assert read(ROLE, say("a"), say("b"), bad).outputs == ["ab"]


def test_a_long_bad_event_is_quoted_in_part():
    reply = read(ROLE, say("a"), "x" * 10_000)
    assert reply.failure is not None
    assert len(reply.failure.message) < 300


def test_a_stream_cut_at_any_byte_is_never_taken_for_a_whole_one():
    events = [ROLE, say('He said "no"\n'), say(" 🙂 wörld"), say("!")]
    body = stream(*events, STOP, usage())
    last = len(stream(*events, STOP, done=False).rstrip(b"\n"))
    for cut in range(len(body)):
        reply = CHAT.read_stream(body[:cut], timed=True)
        whole = reply.failure is None and reply.done
        assert whole == (cut >= last and reply.failure is None), cut
        if cut < last:
            assert not whole, cut


# -- anything at all --------------------------------------------------------------------------------------------------

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
def test_any_json_is_read_without_breaking(values):
    for of in (CHAT, COMPLETIONS):
        reply = read(ROLE, *[event(json.dumps(value)) for value in values], STOP, of=of)
        assert len(reply.texts) == len(reply.ends)
        assert reply.ends == sorted(reply.ends)
        for text in [*reply.outputs, *reply.reasonings, *reply.finish]:
            text.encode()
        whole = of.read_body(json.dumps(values[0] if values else None).encode())
        assert all(isinstance(text, str) for text in whole.outputs)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_without_breaking(noise, timed):
    for of in (CHAT, COMPLETIONS):
        of.read_stream(noise, timed=timed)
        of.read_stream(stream(ROLE, say("a"), say("b")) + noise, timed=timed)
        of.read_body(noise)
