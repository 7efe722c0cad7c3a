"""Each option, set with the X-Mock header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.mock_client import chat_body, request_bytes


def completions_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Once upon a time", **fields}


def test_request_limit_overrides_the_tokens_option(mock: Any) -> None:
    for body, tokens, finish in (
        (chat_body(), 7, "stop"),
        (chat_body(max_tokens=3), 3, "length"),
        (chat_body(max_tokens=3, max_completion_tokens=4), 4, "length"),
    ):
        answer = mock.exchange(body, mock="tokens=7").json
        assert len(answer["choices"][0]["message"]["content"].split()) == tokens
        assert answer["choices"][0]["finish_reason"] == finish
        assert answer["usage"]["completion_tokens"] == tokens
        stream = mock.exchange({**body, "stream": True}, mock="tokens=7;usage=always")
        assert len(stream.text.split()) == tokens
        assert stream.chunks[-2]["choices"][0]["finish_reason"] == finish
        assert stream.chunks[-1]["usage"]["completion_tokens"] == tokens


def test_prompt_tokens_are_counted(mock: Any) -> None:
    parts = [{"type": "text", "text": "x" * 10}, {"type": "image_url", "image_url": {"url": "https://host/cat.png"}}]
    messages = [{"role": "system", "content": "y" * 11}, {"role": "user", "content": parts}]
    messages.append({"role": "assistant", "content": None})
    assert mock.exchange(chat_body(messages=messages)).json["usage"]["prompt_tokens"] == 6 + 256
    path = "/v1/completions"
    assert mock.exchange(completions_body(prompt="x" * 8), path=path).json["usage"]["prompt_tokens"] == 2
    assert mock.exchange(completions_body(prompt=[1, 2, 3]), path=path).json["usage"]["prompt_tokens"] == 3
    rows = mock.exchange(completions_body(prompt=[[1, 2], [3]], n=2), path=path).json
    assert rows["usage"]["prompt_tokens"] == 3
    assert [choice["index"] for choice in rows["choices"]] == [0, 1, 2, 3]


def test_usage_option_decides_when_usage_is_sent(mock: Any) -> None:
    asked = chat_body(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    for body, option, expected in (
        (asked, "asked", True),
        (chat_body(stream=True), "asked", False),
        (chat_body(stream=True), "always", True),
        (asked, "never", False),
    ):
        last = mock.exchange(body, mock=f"usage={option}").chunks[-1]
        assert ("usage" in last) is expected
        assert bool(last["choices"]) is not expected
    assert "usage" not in mock.exchange(chat_body(), mock="usage=never").json


def test_reasoning_comes_first_and_is_counted(mock: Any) -> None:
    answer = mock.exchange(chat_body(stream=True, max_tokens=5), mock="reasoning=2;usage=always")
    deltas = [chunk["choices"][0]["delta"] for chunk in answer.chunks if chunk["choices"]]
    assert [sorted(delta) for delta in deltas] == [
        ["content", "role"],
        ["reasoning_content"],
        ["reasoning_content"],
        ["content"],
        ["content"],
        ["content"],
        [],
    ]
    usage = answer.chunks[-1]["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
    message = mock.exchange(chat_body(max_tokens=5), mock="reasoning=9").json["choices"][0]["message"]
    assert len(message["reasoning_content"].split()) == 5
    assert message["content"] == ""


def test_tools_and_refusal_change_the_kind_of_reply(mock: Any) -> None:
    stream = mock.exchange(chat_body(stream=True), mock="tools;tokens=6")
    deltas = [chunk["choices"][0]["delta"] for chunk in stream.chunks[1:-1]]
    calls = [delta["tool_calls"][0] for delta in deltas]
    assert calls[0]["function"]["name"] == "look_up"
    assert calls[0]["id"]
    assert json.loads("".join(call["function"]["arguments"] for call in calls))["words"]
    assert len(calls) == 6
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(
        c["choices"][0]["delta"].get("refusal", "")
        for c in mock.exchange(chat_body(stream=True), mock="refusal").chunks
    )
    message = mock.exchange(chat_body(), mock="refusal").json["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"]


def test_every_choice_has_its_own_text(mock: Any) -> None:
    answer = mock.exchange(chat_body(stream=True, n=3, max_tokens=4, stream_options={"include_usage": True}))
    texts: dict[int, str] = {}
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3
    assert all(len(text.split()) == 4 for text in texts.values())
    assert answer.chunks[-1]["usage"]["completion_tokens"] == 12
    assert len(mock.exchange(chat_body(n=3)).json["choices"]) == 3


def test_chunk_sets_the_tokens_of_an_event(mock: Any) -> None:
    answer = mock.exchange(chat_body(stream=True, max_tokens=7), mock="chunk=3")
    sizes = [len(chunk["choices"][0]["delta"].get("content", "").split()) for chunk in answer.chunks]
    assert sizes == [0, 3, 3, 1, 0]


def test_role_finish_and_done_events_can_be_omitted(mock: Any) -> None:
    answer = mock.exchange(chat_body(stream=True, max_tokens=2), mock="role=off;finish=off;done=off")
    assert [list(chunk["choices"][0]["delta"]) for chunk in answer.chunks] == [["content"], ["content"]]
    assert answer.events[-1] != "[DONE]"
    assert mock.exchange(chat_body(), mock="finish=off").json["choices"][0]["finish_reason"] is None


def test_event_lines_comments_and_crlf_change_the_stream_format(mock: Any) -> None:
    body = mock.exchange(chat_body(stream=True, max_tokens=2), mock="event_lines;comments=1;crlf").body
    assert body.count(b": ping\r\n\r\n") == 5
    assert body.count(b"event: message\r\ndata: ") == 5
    assert body.count(b"\n") == body.count(b"\r\n")
    assert mock.exchange(chat_body(stream=True, max_tokens=2), mock="comments=2").body.count(b": ping\n\n") == 3


def test_events_due_at_once_are_one_write_unless_separate(start: Any) -> None:
    server = start()
    for options in ("", "separate", "chunk=4;separate", "split=1"):
        assert server.exchange(chat_body(stream=True, max_tokens=8), mock=options).status == 200
    writes = [entry["write_tokens"] for entry in server.logged_requests()]
    assert writes == [[8], [1] * 8, [4, 4], [8]]


def test_split_divides_writes_at_random_bytes(mock: Any) -> None:
    whole = mock.exchange(chat_body(stream=True, max_tokens=6), mock="seed=4").text
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=6), mock="seed=4;itl=15;split=40"))
        answer = connection.read_reply()
    assert len(answer.text.split()) == len(whole.split()) == 6
    assert not all(data.endswith(b"\r\n") for _, data in answer.reads)


@pytest.mark.slow
def test_early_role_is_sent_before_ttft(mock: Any) -> None:
    reads = mock.exchange(chat_body(stream=True, max_tokens=1), mock="role=early;ttft=2000").reads
    assert b'"role"' in reads[0][1]
    assert b"[DONE]" not in reads[0][1]
    assert reads[-1][0] > 1.9


def test_tokens_are_not_sent_before_they_are_due(mock: Any) -> None:
    def first_and_last(options: str, **fields: Any) -> tuple[float, float]:
        reads = mock.exchange(chat_body(stream=True, max_tokens=5, **fields), mock=options).reads
        return reads[0][0], reads[-1][0]

    assert first_and_last("ttft=100")[0] >= 0.09
    assert first_and_last("itl=40")[1] >= 0.15
    long_prompt = first_and_last("input_cost=1000", messages=[{"role": "user", "content": "x" * 500}])
    assert long_prompt[0] >= 0.09
    whole = mock.exchange(chat_body(max_tokens=5), mock="ttft=20;itl=20")
    assert whole.reads[0][0] >= 0.095


def test_reply_due_at_once_does_not_wait_for_slower_replies(mock: Any) -> None:
    with mock.connect() as late, mock.connect() as paced:
        late.send(request_bytes(chat_body(), mock="ttft=1e6"))
        paced.send(request_bytes(chat_body(stream=True, max_tokens=2), mock="itl=1e6"))
        assert paced.sock.recv(15) == b"HTTP/1.1 200 OK"
        assert mock.exchange(chat_body()).status == 200
        late.sock.settimeout(0)
        with pytest.raises(BlockingIOError):
            late.sock.recv(1)


def test_embeddings_have_their_dimensions_and_usage(mock: Any) -> None:
    body = {"model": "e", "input": ["a", "b" * 8]}
    answer = mock.exchange(body, path="/v1/embeddings", mock="dimensions=5").json
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert {len(row["embedding"]) for row in answer["data"]} == {5}
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert len(mock.exchange({**body, "dimensions": 9}, path="/v1/embeddings").json["data"][0]["embedding"]) == 9
    late = mock.exchange(body, path="/v1/embeddings", mock="ttft=60;itl=1e6")
    assert late.reads[0][0] > 0.05  # itl has no effect


def test_token_words_gives_each_token_several_words(mock: Any) -> None:
    for path, body in (
        ("/v1/chat/completions", chat_body(max_tokens=4)),
        ("/v1/completions", completions_body(max_tokens=4)),
    ):
        answer = mock.exchange({**body, "stream": True}, path=path, mock="token_words=3;usage=always")
        assert len(answer.text.split()) == 12
        assert answer.chunks[-1]["usage"]["completion_tokens"] == 4


def test_legacy_limit_ignores_max_completion_tokens(mock: Any) -> None:
    for limit, tokens, finish in (("max_completion_tokens", 7, "stop"), ("max_tokens", 3, "length")):
        answer = mock.exchange(chat_body(**{limit: 3}), mock="tokens=7;legacy_limit").json
        assert answer["usage"]["completion_tokens"] == tokens
        assert answer["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("timing", ["", ";itl=1"])
def test_continuous_usage_stats_send_the_usage_so_far_in_every_chunk(mock: Any, timing: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for content, reasoning in (("hello", 1), ("hello world, how are you?", 1)):
        messages = [{"role": "user", "content": content}]
        body = chat_body(messages=messages, stream=True, stream_options=options, max_tokens=5)
        answer = mock.exchange(body, mock=f"chunk=2;reasoning={reasoning}{timing}")
        usages = [chunk["usage"] for chunk in answer.chunks if "usage" in chunk]
        assert [usage["completion_tokens"] for usage in usages] == [1, 3, 5, 5]
        assert len({usage["prompt_tokens"] for usage in usages}) == 1
    assert "usage" not in mock.exchange(body, mock="usage=never").chunks[1]
