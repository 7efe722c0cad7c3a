"""Each option, asked for with X-Mock over a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.mock_client import chat, request


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Once upon a time", **fields}


def test_length_follows_the_request_then_the_option(mock: Any) -> None:
    for body, tokens, finish in (
        (chat(), 7, "stop"),
        (chat(max_tokens=3), 3, "length"),
        (chat(max_tokens=3, max_completion_tokens=4), 4, "length"),
    ):
        answer = mock.ask(body, mock="tokens=7").json
        assert len(answer["choices"][0]["message"]["content"].split()) == tokens
        assert answer["choices"][0]["finish_reason"] == finish
        assert answer["usage"]["completion_tokens"] == tokens
        stream = mock.ask({**body, "stream": True}, mock="tokens=7;usage=always")
        assert len(stream.text.split()) == tokens
        assert stream.chunks[-2]["choices"][0]["finish_reason"] == finish
        assert stream.chunks[-1]["usage"]["completion_tokens"] == tokens


def test_input_is_counted(mock: Any) -> None:
    parts = [{"type": "text", "text": "x" * 10}, {"type": "image_url", "image_url": {"url": "https://host/cat.png"}}]
    messages = [{"role": "system", "content": "y" * 11}, {"role": "user", "content": parts}]
    messages.append({"role": "assistant", "content": None})
    assert mock.ask(chat(messages=messages)).json["usage"]["prompt_tokens"] == 6 + 256
    path = "/v1/completions"
    assert mock.ask(completion(prompt="x" * 8), path=path).json["usage"]["prompt_tokens"] == 2
    assert mock.ask(completion(prompt=[1, 2, 3]), path=path).json["usage"]["prompt_tokens"] == 3
    rows = mock.ask(completion(prompt=[[1, 2], [3]], n=2), path=path).json
    assert rows["usage"]["prompt_tokens"] == 3
    assert [choice["index"] for choice in rows["choices"]] == [0, 1, 2, 3]


def test_usage_is_sent_when_asked_always_or_never(mock: Any) -> None:
    asked = chat(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    for body, option, expected in (
        (asked, "asked", True),
        (chat(stream=True), "asked", False),
        (chat(stream=True), "always", True),
        (asked, "never", False),
    ):
        last = mock.ask(body, mock=f"usage={option}").chunks[-1]
        assert ("usage" in last) is expected
        assert bool(last["choices"]) is not expected
    assert "usage" not in mock.ask(chat(), mock="usage=never").json


def test_reasoning_comes_first_and_is_counted(mock: Any) -> None:
    answer = mock.ask(chat(stream=True, max_tokens=5), mock="reasoning=2;usage=always")
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
    message = mock.ask(chat(max_tokens=5), mock="reasoning=9").json["choices"][0]["message"]
    assert len(message["reasoning_content"].split()) == 5
    assert message["content"] == ""


def test_tool_calls_and_refusals(mock: Any) -> None:
    stream = mock.ask(chat(stream=True), mock="tools;tokens=6")
    deltas = [chunk["choices"][0]["delta"] for chunk in stream.chunks[1:-1]]
    calls = [delta["tool_calls"][0] for delta in deltas]
    assert calls[0]["function"]["name"] == "look_up"
    assert calls[0]["id"]
    assert json.loads("".join(call["function"]["arguments"] for call in calls))["words"]
    assert len(calls) == 6
    assert stream.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(
        c["choices"][0]["delta"].get("refusal", "") for c in mock.ask(chat(stream=True), mock="refusal").chunks
    )
    message = mock.ask(chat(), mock="refusal").json["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"]


def test_choices(mock: Any) -> None:
    answer = mock.ask(chat(stream=True, n=3, max_tokens=4, stream_options={"include_usage": True}))
    texts: dict[int, str] = {}
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3
    assert all(len(text.split()) == 4 for text in texts.values())
    assert answer.chunks[-1]["usage"]["completion_tokens"] == 12
    assert len(mock.ask(chat(n=3)).json["choices"]) == 3


def test_chunk_puts_tokens_together(mock: Any) -> None:
    answer = mock.ask(chat(stream=True, max_tokens=7), mock="chunk=3")
    sizes = [len(chunk["choices"][0]["delta"].get("content", "").split()) for chunk in answer.chunks]
    assert sizes == [0, 3, 3, 1, 0]


def test_events_can_lack_role_finish_and_done(mock: Any) -> None:
    answer = mock.ask(chat(stream=True, max_tokens=2), mock="role=off;finish=off;done=off")
    assert [list(chunk["choices"][0]["delta"]) for chunk in answer.chunks] == [["content"], ["content"]]
    assert answer.events[-1] != "[DONE]"
    assert mock.ask(chat(), mock="finish=off").json["choices"][0]["finish_reason"] is None


def test_event_lines_comments_and_line_ends(mock: Any) -> None:
    body = mock.ask(chat(stream=True, max_tokens=2), mock="event_lines;comments=1;crlf").body
    assert body.count(b": ping\r\n\r\n") == 5
    assert body.count(b"event: message\r\ndata: ") == 5
    assert body.count(b"\n") == body.count(b"\r\n")
    assert mock.ask(chat(stream=True, max_tokens=2), mock="comments=2").body.count(b": ping\n\n") == 3


def test_a_burst_is_one_write_unless_they_are_separate(start: Any) -> None:
    server = start()
    for options in ("", "separate", "chunk=4;separate", "split=1"):
        assert server.ask(chat(stream=True, max_tokens=8), mock=options).status == 200
    writes = [line["write_tokens"] for line in server.truth()]
    assert writes == [[8], [1] * 8, [4, 4], [8]]


def test_split_cuts_at_arbitrary_bytes(mock: Any) -> None:
    whole = mock.ask(chat(stream=True, max_tokens=6), mock="seed=4").text
    with mock.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=6), mock="seed=4;itl=15;split=40"))
        answer = wire.answer()
    assert len(answer.text.split()) == len(whole.split()) == 6
    assert not all(data.endswith(b"\r\n") for _, data in answer.reads)


def test_early_role_precedes_the_first_token(mock: Any) -> None:
    reads = mock.ask(chat(stream=True, max_tokens=1), mock="role=early;ttft=2000").reads
    assert b'"role"' in reads[0][1]
    assert b"[DONE]" not in reads[0][1]
    assert reads[-1][0] > 1.9


def test_nothing_comes_before_its_time(mock: Any) -> None:
    def first_and_last(options: str, **fields: Any) -> tuple[float, float]:
        reads = mock.ask(chat(stream=True, max_tokens=5, **fields), mock=options).reads
        return reads[0][0], reads[-1][0]

    assert first_and_last("ttft=100")[0] >= 0.09
    assert first_and_last("itl=40")[1] >= 0.15
    long_prompt = first_and_last("input_cost=1000", messages=[{"role": "user", "content": "x" * 500}])
    assert long_prompt[0] >= 0.09
    whole = mock.ask(chat(max_tokens=5), mock="ttft=20;itl=20")
    assert whole.reads[0][0] >= 0.095


def test_what_is_due_at_once_does_not_wait(mock: Any) -> None:
    """For a pace that is asked for on another connection, or for what comes later in the same reply."""
    with mock.wire() as late, mock.wire() as paced:
        late.send(request(chat(), mock="ttft=1e6"))
        paced.send(request(chat(stream=True, max_tokens=2), mock="itl=1e6"))
        assert paced.sock.recv(15) == b"HTTP/1.1 200 OK"
        assert mock.ask(chat()).status == 200
        late.sock.settimeout(0)
        with pytest.raises(BlockingIOError):
            late.sock.recv(1)


def test_embeddings(mock: Any) -> None:
    body = {"model": "e", "input": ["a", "b" * 8]}
    answer = mock.ask(body, path="/v1/embeddings", mock="dimensions=5").json
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert {len(row["embedding"]) for row in answer["data"]} == {5}
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert len(mock.ask({**body, "dimensions": 9}, path="/v1/embeddings").json["data"][0]["embedding"]) == 9
    late = mock.ask(body, path="/v1/embeddings", mock="ttft=60;itl=1e6")
    assert late.reads[0][0] > 0.05  # and it came: there are no gaps in it
