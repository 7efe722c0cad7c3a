"""Each endpoint type besides chat, completions and responses against the mock, whose log has the true counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.programs import MockServer, Outcome, Program

TTFT_MS = 5
TOKENS = 7
RANKING = ("--rankings-passages-mean", 3, "--rankings-passages-prompt-token-mean", 10)
RANKING = (*RANKING, "--rankings-query-prompt-token-mean", 8)
PROMPT = ("--isl", 20)
IMAGES = ("--image-width-mean", 8, "--image-height-mean", 8)
OUTPUT_METRICS = ("time_to_first_token", "inter_token_latency", "output_sequence_length", "output_token_throughput")

CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "embeddings": ("/v1/embeddings", (*PROMPT, "--batch-size", 2)),
    "chat_embeddings": ("/v1/embeddings", (*PROMPT, *IMAGES)),
    "nim_embeddings": ("/v1/embeddings", (*PROMPT, *IMAGES, "--batch-size", 2, "--extra-inputs", "input_type:passage")),
    "image_edit": ("/v1/images/edits", (*PROMPT, *IMAGES, "--extra-inputs", "n:2")),
    "image_retrieval": ("/v1/infer", (*IMAGES, "--batch-size-image", 3)),
    "nim_rankings": ("/v1/ranking", RANKING),
    "cohere_rankings": ("/v2/rerank", RANKING),
    "hf_tei_rankings": ("/rerank", RANKING),
    "messages": ("/v1/messages", (*PROMPT, "--streaming", "--osl", TOKENS, "--api-key", "sk-1")),
    "huggingface_generate": ("/generate_stream", (*PROMPT, "--streaming", "--osl", TOKENS)),
    "image_generation": ("/v1/images/generations", (*PROMPT, "--extra-inputs", "n:2")),
    "audio_transcription": ("/v1/audio/transcriptions", ("--audio-length-mean", 0.5)),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Outcome], list[dict[str, Any]]]]:
    """Run every case against one mock. Return the outcomes and the mock's log."""
    folder = tmp_path_factory.mktemp("endpoints")
    mock = MockServer(folder, {"ttft": TTFT_MS, "itl": 1, "tokens": TOKENS}, port=0, writes=False, hashes=False)
    program = Program(Path(folder))
    try:
        outcomes = {
            name: program.profile(
                mock.url, "--endpoint-type", name, *flags, "--request-count", 3, "--tokenizer", "builtin", texts=None
            )
            for name, (_, flags) in CASES.items()
        }
        yield outcomes, mock.logged_requests()
    finally:
        program.end()
        mock.stop()


Runs = tuple[dict[str, Outcome], list[dict[str, Any]]]


@pytest.mark.parametrize("name", CASES)
def test_endpoint_reports_the_counts_and_times_of_the_server(runs: Runs, name: str) -> None:
    outcomes, log = runs
    path, flags = CASES[name]
    done = outcomes[name]
    assert done.status == 0, done
    assert len(done.records) == 3
    ids = {record["metadata"]["x_request_id"] for record in done.records}
    served = [entry for entry in log if entry["request_id"] in ids]
    assert [(entry["status"], entry["path"]) for entry in served] == [(200, path)] * 3
    by_id = {entry["request_id"]: entry for entry in served}
    for record in done.records:
        entry = by_id[record["metadata"]["x_request_id"]]
        assert entry["stream"] is ("--streaming" in flags)
        metrics = {tag: metric["value"] for tag, metric in record["metrics"].items()}
        server_ms = (entry["ended_ns"] - entry["arrived_ns"]) / 1e6
        assert metrics["request_latency"] >= TTFT_MS
        assert server_ms >= TTFT_MS
        if "usage_prompt_tokens" in metrics:
            assert metrics["usage_prompt_tokens"] == entry["prompt_tokens"]
        if "--streaming" in flags:
            assert metrics["usage_completion_tokens"] == entry["completion_tokens"] == TOKENS
            assert metrics["output_sequence_length"] == TOKENS
            assert metrics["time_to_first_token"] >= TTFT_MS
        else:
            assert [tag for tag in OUTPUT_METRICS if tag in metrics] == []
    if "--streaming" not in flags:
        assert [tag for tag in OUTPUT_METRICS if tag in done.summary] == []
        assert "Token Latency" not in done.out


def test_usage_is_read_where_the_api_has_it(runs: Runs) -> None:
    outcomes, _ = runs
    without = {name for name, done in outcomes.items() if "usage_prompt_tokens" not in done.summary}
    assert without == {"hf_tei_rankings", "image_retrieval"}


def test_input_length_is_that_of_the_texts(runs: Runs) -> None:
    outcomes, _ = runs
    lengths = {name: done.summary.get("input_sequence_length", {}).get("avg") for name, done in outcomes.items()}
    assert lengths["audio_transcription"] is lengths["image_retrieval"] is None
    prompts = ("messages", "huggingface_generate", "image_generation", "image_edit", "chat_embeddings")
    assert [lengths[name] for name in prompts] == [20] * 5
    assert lengths["embeddings"] == lengths["nim_embeddings"] == 40
    for name in ("nim_rankings", "cohere_rankings", "hf_tei_rankings"):
        assert lengths[name] == pytest.approx(
            38, abs=3
        )  # a query of 8 and three passages of 10 tokens, joined by spaces


def test_images_and_audio_are_measured(runs: Runs) -> None:
    outcomes, log = runs
    images = outcomes["image_generation"].records[0]["metrics"]
    latency = images["request_latency"]["value"]
    assert images["num_images"] == {"value": 2, "unit": "images"}
    assert images["image_latency"]["value"] == pytest.approx(latency / 2)
    assert images["image_throughput"]["value"] == pytest.approx(2000 / latency)
    audio = outcomes["audio_transcription"].records[0]["metrics"]
    assert audio["audio_duration"] == {"value": 0.5, "unit": "sec"}
    assert audio["rtfx"]["value"] == pytest.approx(500 / audio["request_latency"]["value"])
    assert [entry["audios"] for entry in log if entry["path"].endswith("/transcriptions")] == [1, 1, 1]
    assert "num_images" not in outcomes["embeddings"].summary
    counts = {name: done.records[0]["metrics"].get("num_images", {}).get("value") for name, done in outcomes.items()}
    # Of an edit, the images in the reply count.
    expected = {"chat_embeddings": 1, "nim_embeddings": 1, "image_edit": 2, "image_retrieval": 3}
    assert {name: counts[name] for name in expected} == expected
    for name, path in (("image_edit", "/v1/images/edits"), ("image_retrieval", "/v1/infer")):
        assert {entry["images"] for entry in log if entry["path"] == path} == {1 if name == "image_edit" else 3}


def test_titles_name_the_kind_of_the_endpoint(runs: Runs) -> None:
    outcomes, _ = runs
    titles = {name: done.out.partition("Penstock | ")[2].partition("\n")[0] for name, done in outcomes.items()}
    assert titles["embeddings"] == "Embeddings Metrics"
    assert titles["messages"] == "LLM Metrics"
    assert titles["audio_transcription"] == "Audio Transcription Metrics"
    assert titles["chat_embeddings"] == "Embeddings Metrics"
    assert titles["nim_embeddings"] == "NIM Embeddings Metrics"
    assert titles["image_edit"] == "Image Edit Metrics"
    assert titles["image_retrieval"] == "Image Retrieval Metrics"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("embeddings --osl 5", "--osl limits the tokens of replies, which --endpoint-type embeddings does not have"),
        (
            "nim_rankings --isl 5",
            "--isl applies to prompts, and a ranking has a query and passages; use --rankings-query",
        ),
        ("chat --rankings-passages-mean 2", "use nim_rankings, cohere_rankings or hf_tei_rankings."),
        ("audio_transcription", "sends one audio clip in each request, not 0; give --audio-length-mean"),
        (
            "audio_transcription --isl 5",
            "--isl applies to texts, which requests of --endpoint-type audio_transcription do",
        ),
        (
            "embeddings --streaming",
            "--streaming asks for streamed replies, which --endpoint-type embeddings does not have",
        ),
    ],
)
def test_flags_that_do_not_fit_the_endpoint_are_refused(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = ["profile", "--model", "m", "--url", "http://127.0.0.1:9", "--endpoint-type", *flags.split()]
    assert main([*words, "--tokenizer", "builtin"]) == 2
    assert message in capsys.readouterr().err
