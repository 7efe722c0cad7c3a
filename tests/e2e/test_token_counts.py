"""Token counts that differ, and replies that are easy to measure wrongly."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models

from penstock.tokens.chat_template import with_chat_template
from penstock.tokens.tiktoken_vocabulary import open_builtin

CLIENT = ["--streaming", "--isl", 40, "--osl", 12, "--tokenizer", "builtin", "--request-count", 6]


@pytest.mark.parametrize("output", ["--ui=simple", "--quiet"])
def test_different_token_counts_degrade_the_certificate_and_are_both_reported(mock, program, output):
    url = mock(ttft=5, itl=4, token_words=5).url
    outcome = program.profile(url, *CLIENT, output, texts=None)
    assert outcome.status == 0, outcome
    certificate, agreement = outcome.summary["certificate"], outcome.summary["token_agreement"]
    sentence = "The server counted 72 output tokens, 80 % fewer than the client (360)"
    assert certificate["verdict"] != "VALID"
    assert any(reason.startswith(sentence) for reason in certificate["reasons"])
    assert (agreement["output"]["ratio"], agreement["input"]["agrees"]) == (0.2, True)
    by_client, by_server = (
        agreement[f"by_{side}_count"]["inter_token_latency"]["avg"] for side in ("client", "server")
    )
    assert by_server / by_client == pytest.approx(59 / 11)
    assert sentence in " ".join((outcome.err if output == "--quiet" else outcome.out).split())
    assert "Token Metrics by Both Counts" in outcome.text("profile_export_console.txt")


def test_equal_token_counts_are_reported_once(mock, program):
    outcome = program.profile(mock(ttft=5, itl=1).url, *CLIENT, texts=None)
    assert outcome.summary["token_agreement"]["output"]["ratio"] == 1
    assert "Both Counts" not in outcome.out


def test_input_length_includes_the_chat_template(mock, program):
    flags = ["--isl", 40, "--osl", 6, "--tokenizer", "builtin", "--conversation-num", 2, "--conversation-turn-mean", 2]
    outcome = program.profile(mock().url, *flags, "--apply-chat-template", texts=None)
    assert outcome.status == 0, outcome
    chat = with_chat_template(open_builtin(), "builtin", "main")
    counts = [chat.count(chat.render(body["messages"])) for body in outcome.inputs]
    assert sorted(outcome.values("input_sequence_length")) == sorted(counts)
    assert sorted(counts)[:2] == [40, 40]


def test_messages_that_the_chat_template_refuses_do_not_end_the_report(mock, program, tmp_path):
    inner = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    )
    bodies = [{"model": "m", "messages": [{"role": role, "content": "Hello"}]} for role in ("system", "user")]
    (tmp_path / "bodies.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    flags = ["--input-file", tmp_path / "bodies.jsonl", "--tokenizer", tmp_path, "--apply-chat-template"]
    outcome = program.profile(mock().url, *flags, texts=None)
    assert outcome.status == 0, outcome
    assert outcome.values("input_sequence_length") == [1]


def test_per_chunk_usage_counts_the_tokens_of_the_first_chunk(mock, program):
    url = mock(ttft=5, itl=5, chunk=4).url
    outcome = program.profile(url, "--streaming", "--osl", 20, "--per-chunk-usage", "--request-count", 6)
    assert outcome.status == 0, outcome
    summary = outcome.summary
    assert summary["inter_token_latency"]["avg"] == summary["time_per_output_token"]["avg"]
    assert summary["reply_notes"] == [
        "Chunks hold 4.0 tokens on average, and inter-token latency excludes those of the first chunk."
    ]
    assert outcome.inputs[0]["stream_options"]["continuous_usage_stats"] is True


def test_ignored_length_limit_names_the_legacy_flag(mock, program):
    flags = ["--streaming", "--osl", 10, "--request-count", 6]
    url = mock(ttft=5, itl=1, tokens=30, legacy_limit=True).url
    outcome = program.profile(url, *flags)
    assert "6 of 6 replies are more than 5 % longer than requested" in outcome.out
    assert "--use-legacy-max-tokens" in outcome.out
    outcome = program.profile(url, *flags, "--use-legacy-max-tokens")
    assert "longer than requested" not in outcome.out


def test_stream_in_one_burst_is_noted(mock, program):
    outcome = program.profile(mock(ttft=50).url, "--streaming", "--osl", 10, "--request-count", 6)
    assert "6 of 6 streamed replies with several chunks arrived in one burst" in " ".join(outcome.out.split())
