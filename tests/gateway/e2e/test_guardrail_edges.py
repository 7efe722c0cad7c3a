"""Guardrails end to end, difficult cases: unexpected shapes, escapes, duplicate keys, slow inspections, and the phases of
the time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.gateway_process import ALIAS, GatewayProcess, Reply, Stream, fetch, keyword, resources
from support.scripted_upstream import Upstream, chat_body, event, normal_reply, response_body, response_events

WORD = "BLOCKME"
SLOW = {"name": "slow", "kind": "keyword", "patterns": [{"kind": "regex", "value": r"(?:[a-z]+ )+QQQ"}]}
EMAIL = {"name": "pii", "kind": "pii", "detectors": [{"type": "email", "action": "mask"}]}


@pytest.fixture(scope="module")
def window(server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        tmp_path_factory.mktemp("window"),
        resources(server.url),
        guardrails={"stream_mode": "window", "max_lengths": {"slow": 10_000}},
    )
    yield process
    assert "internal error" not in process.log_text()
    process.stop()


@pytest.fixture(params=["buffer", "window"])
def guarded(
    request: pytest.FixtureRequest, gateway: GatewayProcess, window: GatewayProcess, upstream: Upstream
) -> Callable[..., GatewayProcess]:
    """Returns a gateway with guardrails, in both stream modes."""
    process = gateway if request.param == "buffer" else window

    def make(*guardrails: dict[str, Any]) -> GatewayProcess:
        process.reload(resources(upstream.url, guardrails=list(guardrails) or [keyword("words", WORD)]))
        return process

    return make


@pytest.fixture
def buffered(gateway: GatewayProcess, upstream: Upstream) -> Callable[..., GatewayProcess]:
    def make(*guardrails: dict[str, Any]) -> GatewayProcess:
        gateway.reload(resources(upstream.url, guardrails=list(guardrails) or [keyword("words", WORD)]))
        return gateway

    return make


def assert_blocked(reply: Reply, side: str = "response") -> None:
    assert reply.status == 422, reply
    assert reply.error["type"] == "content_filter"
    assert side in reply.error["message"]
    assert b"LOCKME" not in reply.body


# -- spec cases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deltas", "final"), [(["BLO", "CKME"], "all clean"), (["all ", "clean"], WORD)])
def test_word_only_in_deltas_or_only_in_the_final_object_is_blocked(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, deltas: list[str], final: str
) -> None:
    gateway = guarded()
    begun = [piece for piece in response_events(deltas) if b'.done"' not in piece and b"completed" not in piece[:40]]
    upstream.stream_with([*begun, event("response.completed", 99, response=response_body(final))])
    stream = gateway.stream()
    text = stream.read_rest()
    assert b"BLO" not in text
    assert stream.status == 422 or text.rstrip().rsplit(b"\n\n", 1)[-1].startswith(b"event: response.failed")
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["blocked"], entry["output_tokens"]) == (422, 1, 23)


def multi_line(piece: bytes) -> bytes:
    name, data = piece.decode().strip().split("\n")
    lines = json.dumps(json.loads(data.removeprefix("data: ")), indent=1, ensure_ascii=False).split("\n")
    return "\n".join([name, *(f"data: {line}" for line in lines), "", ""]).encode()


def as_utf8(piece: bytes) -> bytes:
    """Replace escapes by the characters."""
    name, data = piece.decode().strip().split("\n")
    return f"{name}\ndata: {json.dumps(json.loads(data.removeprefix('data: ')), ensure_ascii=False)}\n\n".encode()


FORMS: dict[str, Callable[[list[bytes]], bytes]] = {
    "CRLF": lambda pieces: b"".join(pieces).replace(b"\n", b"\r\n"),
    "CR": lambda pieces: b"".join(pieces).replace(b"\n", b"\r"),
    "BOM": lambda pieces: b"\xef\xbb\xbf" + b"".join(pieces),
    "comments": b": ping\n\n".join,
    "several data lines": lambda pieces: b"".join(map(multi_line, pieces)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("size", [1, 7])
def test_word_is_found_in_any_sse_form_however_it_is_split(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, form: Callable[[list[bytes]], bytes], size: int
) -> None:
    gateway = guarded(keyword("words", WORD, "禁词"))
    for texts, blocked in ((["so BLO", "CKME"], True), (["这是禁", "词"], True), (["so BLO", "CK it", "这是"], False)):
        pieces = [as_utf8(piece) for piece in response_events(texts)]
        body = form(pieces)
        upstream.stream_with([body[at : at + size] for at in range(0, len(body), size)])
        if blocked:
            assert_blocked(gateway.respond(stream=True))
        else:
            assert gateway.stream().read_rest() == body.replace(b": ping\n\n", b"")


@pytest.mark.parametrize(
    "piece",
    [
        event("response.output_text.done", 0, item_id="i", output_index=0, content_index=0, text=WORD),
        event("response.custom_tool_call_input.delta", 0, item_id="i", output_index=0, delta=WORD),
        event("response.custom_tool_call_input.done", 0, item_id="i", output_index=0, input=WORD),
    ],
)
def test_texts_without_deltas_and_custom_tool_input_are_inspected(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, piece: bytes
) -> None:
    upstream.stream_with([piece, event("response.completed", 1, response=response_body("fine"))])
    assert_blocked(guarded().respond(stream=True))


@pytest.mark.parametrize(
    "input_",
    [
        [{"role": "user", "content": {"whatever": {"deep": WORD}}}],
        [{"role": "user", "content": [["a", [WORD]]]}],
        [{"role": "user", "content": [{"type": "x", "content": [{"type": "y", "content": [{"text": WORD}]}]}]}],
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": [WORD]}}],
    ],
)
def test_request_content_that_is_not_a_string_is_inspected(
    buffered: Callable[..., GatewayProcess], upstream: Upstream, input_: list[Any]
) -> None:
    assert_blocked(buffered().respond(input_), "request")
    assert upstream.requests == []


# -- replies of unexpected shape ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(response_body(WORD)).encode(),
        b"BLOCKME\n\n",
        b": BLOCKME\n\n",
        b"event: BLOCKME\ndata: {}\n\n",
        b"id: BLOCKME\ndata: {}\n\n",
    ],
)
def test_only_events_of_a_guarded_stream_are_released(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, body: bytes
) -> None:
    has_data = b"data:" in body
    end = event("response.completed", 9, response={})
    upstream.stream_with([body, end] if has_data else [body])
    reply = guarded().respond(stream=True)
    assert b"LOCKME" not in reply.body
    if has_data:
        assert (reply.status, reply.body) == (200, b"data: {}\n\n" + end)
    else:
        assert reply.status == 502


def test_reply_that_is_not_an_object_is_inspected(buffered: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = buffered()
    upstream.reply_with([WORD])
    assert_blocked(gateway.respond())
    upstream.reply_with(["fine"])
    assert gateway.respond().body == b'["fine"]'


# -- escapes --------------------------------------------------------------------------------------------------------------


def test_escapes_in_request_arguments_are_decoded_and_masked(
    buffered: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = buffered(keyword("words", WORD, "禁词"), EMAIL)
    for text in ('{"a":"\\u0042LOCKME"}', json.dumps({"a": "禁词"})):
        for item in ({"type": "function_call", "arguments": text}, {"type": "function_call_output", "output": text}):
            assert_blocked(gateway.respond([{"call_id": "c", **item}]), "request")
    assert upstream.requests == []
    item = {"type": "function_call", "call_id": "c", "arguments": '{"to":"\\u0061nn@example.com"}'}
    assert gateway.respond([item]).status == 200
    assert upstream.requests[0].json["input"][0]["arguments"] == '{"to":"[EMAIL_REDACTED]"}'


def test_escapes_in_reply_arguments_are_decoded(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = guarded()
    call = {"id": "t", "function": {"name": "f", "arguments": '{"a":"\\u0042LOCKME"}'}}
    upstream.reply_with(chat_body(tool_calls=[call]))
    chat = {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]}
    assert_blocked(gateway.post("/v1/chat/completions", chat))
    where = {"item_id": "i", "output_index": 0}
    pieces = ['{"a":"', "\\", "u0", "04", "2LOC", 'KME"}']
    upstream.stream_with(
        [event("response.function_call_arguments.delta", n, **where, delta=piece) for n, piece in enumerate(pieces)]
    )
    reply = gateway.respond(stream=True)
    assert b"LOC" not in reply.body
    assert gateway.ledger_entry(reply)["blocked"] == 1


def test_interleaved_tool_calls_are_inspected_in_a_window(window: GatewayProcess, upstream: Upstream) -> None:
    window.reload(resources(upstream.url, guardrails=[keyword("words", WORD)]))

    def call(index: int, text: str) -> bytes:
        delta = {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        return f"data: {json.dumps(chunk)}\n\n".encode()

    for last, blocked in (("KME", True), ("K", False)):
        upstream.stream_with(
            [call(0, "Fine. "), call(0, "BLOC"), call(1, "x"), call(0, last), b"data: [DONE]\n\n"], 0.02
        )
        stream = window.stream("/v1/chat/completions")
        text = stream.read_rest()
        # tool arguments are held to their end, so nothing has been sent
        assert stream.status == (422 if blocked else 200)
        assert (b"BLOC" not in text) == blocked
        assert (b"content_filter" in text) == blocked


# -- bodies ---------------------------------------------------------------------------------------------------------------


def test_duplicate_key_in_a_request_is_400_if_input_is_inspected(
    buffered: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    body = b'{"model":"%b","input":"BLOCKME","input":"ok"}' % ALIAS.encode()
    reply = buffered().post("/v1/responses", body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "duplicate key" in reply.error["message"]
    assert upstream.requests == []
    assert buffered(EMAIL | {"hook_point": "output"}).post("/v1/responses", body).status == 200
    assert upstream.requests[0].body == body.replace(ALIAS.encode(), b"gpt-4o-mini")


def test_only_the_last_duplicate_key_of_a_reply_is_sent(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = guarded()
    part = b'{"type":"output_text","text":"it is BLOCKME","text":"clean"}'
    body = b'{"id":"r", "object":"response","output":[{"type":"message","content":[%b]}]}'
    upstream.reply_with(body % part)
    reply = gateway.respond()
    clean = body.replace(b", ", b",") % b'{"type":"output_text","text":"clean"}'
    assert (reply.status, reply.body) == (200, clean)
    delta = b'data: {"type":"response.output_text.delta","output_index":0,%b"delta":"clean "}\n\n'
    end = event("response.completed", 9, response={})
    upstream.stream_with([delta % b'"delta":"it is BLOCKME ",', delta % b"", end])
    assert gateway.respond(stream=True).body == delta % b"" * 2 + end
    body = b'{"model":"a\\/b","choices":[{"index":0,"message":{"content":"BLOCKME","content":"clean"}}]}'
    upstream.reply_with(body)
    chat = {"model": ALIAS, "messages": [{"role": "user", "content": "x"}]}
    assert gateway.post("/v1/chat/completions", chat).body == body.replace(b"a\\/b", ALIAS.encode()).replace(
        b'"content":"BLOCKME",', b""
    )  # serialised again, it has the same bytes


def test_masking_keeps_all_other_bytes_of_the_request(
    buffered: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = buffered(EMAIL)
    body = (
        b'{"model": "%b", "f":1.0000000000000000000001,\n "g":1E400, "h":"\\ud800", "input":"ann@example.com" }'
        % ALIAS.encode()
    )
    assert gateway.post("/v1/responses", body).status == 200
    expected = body.replace(ALIAS.encode(), b"gpt-4o-mini").replace(b"ann@example.com", b"[EMAIL_REDACTED]")
    assert upstream.requests[0].body == expected


def test_unpaired_surrogate_passes_without_guardrails(gateway: GatewayProcess, upstream: Upstream) -> None:
    body = b'{"model":"%b","input":"\\ud800"}' % ALIAS.encode()
    assert gateway.post("/v1/responses", body).status == 200
    assert upstream.requests[0].body == body.replace(ALIAS.encode(), b"gpt-4o-mini")


# -- time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_slow_inspection_times_out_without_blocking_the_worker(
    buffered: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = buffered(SLOW)
    messages = [{"role": "user", "content": "some words here " * 60}] * 1500
    replies: list[Reply] = []
    sender = threading.Thread(target=lambda: replies.append(gateway.respond(messages)))
    sender.start()
    live_checks = 0
    while sender.is_alive():
        assert fetch(gateway.port, "GET", "/livez").status == 200
        live_checks += 1
    sender.join()
    assert live_checks >= 10  # during an inspection of one second
    [reply] = replies
    assert (reply.status, reply.error["type"]) == (422, "inspection_timeout")
    assert "Content inspection of the request timed out" in reply.error["message"]
    assert "'slow'" in reply.error["message"]
    assert upstream.requests == []
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["error"], entry["blocked"]) == (422, "inspection_timeout", 1)
    assert entry["guardrails"] == [{"guardrail": "slow", "hook": "input", "action": "timed_out", "count": 1}]
    assert_phases_add_up(entry["phases_ms"], "guardrail_in")


@pytest.mark.slow
def test_slow_inspection_of_a_reply_or_stream_is_422(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = guarded(SLOW | {"hook_point": "output"})
    words = "some words here " * 3000
    upstream.reply_with(response_body(words))
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (422, "inspection_timeout")
    assert "response" in reply.error["message"]
    upstream.stream_with(response_events([words]))
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (422, "inspection_timeout")
    entry = gateway.ledger_entry(reply)
    assert (entry["error"], entry["guardrails"][0]["action"]) == ("inspection_timeout", "timed_out")
    assert (entry["output_tokens"], entry["usage_source"]) == (23, "upstream")


def timing(reply: Reply | Stream) -> dict[str, float]:
    return {
        name: float(ms) for name, ms in (part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    }


def assert_phases_add_up(phases: dict[str, float], *names: str) -> None:
    total = phases["total"]
    assert sum(phases.values()) - total == pytest.approx(total, rel=0.001, abs=0.01)
    assert set(names) <= set(phases)


def test_phases_add_up_for_blocks_and_refusals(buffered: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = buffered()
    for reply, names in (
        (gateway.respond(key="sk-nobody"), ("auth",)),
        (gateway.respond(WORD), ("auth", "receive", "guardrail_in")),
        (gateway.respond(), ("auth", "guardrail_in", "quota", "upstream", "guardrail_out")),
    ):
        assert_phases_add_up(timing(reply), *names)
        if reply.status != 401:  # a 401 has no entry
            assert_phases_add_up(gateway.ledger_entry(reply)["phases_ms"], *names)
        assert max(timing(reply).items(), key=lambda item: (item[0] != "total", item[1]))[0] != "serialise"


def test_phases_add_up_for_streams(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = guarded()
    for texts, names in ((["all ", "is ", "well"], {"upstream", "guardrail_out"}), ([WORD], {"guardrail_out"})):
        upstream.stream_with(response_events(texts), 0.01)
        stream = gateway.stream()
        stream.read_rest()
        assert_phases_add_up(timing(stream), *names)
        assert_phases_add_up(gateway.ledger_entry(stream)["phases_ms"], *names)


def test_inspection_of_a_held_stream_is_not_counted_as_upstream_time(
    buffered: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = buffered(SLOW | {"hook_point": "output"})
    upstream.stream_with(response_events(["some words here " * 60, "- " * 40] * 3))
    stream = gateway.stream()
    assert stream.status == 200
    assert stream.read_rest().endswith(b"\n\n")
    for phases in (timing(stream), gateway.ledger_entry(stream)["phases_ms"]):
        assert_phases_add_up(phases, "guardrail_out", "upstream")
        assert phases["guardrail_out"] > phases["upstream"]
    upstream.use_script(normal_reply)
