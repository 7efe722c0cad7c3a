"""Notes about replies whose form makes metrics misleading."""

import pytest

from penstock.metrics.reply_checks import ReplyChecks
from penstock.records.record import Usage
from support.records import MS, make_record, with_values
from support.runs import make_header, report_run

LENGTH = {"output_sequence_length": 5}


def notes(*records, values=LENGTH, **header):
    checks = ReplyChecks(make_header(**header))
    for record in records:
        checks.add(*with_values(record, values))
    return checks.notes()


def stream(*stamps_ms, pieces=None, **fields):
    return make_record(stamps=[ms * MS for ms in stamps_ms], pieces=pieces or [1] * len(stamps_ms), **fields)


def test_paced_reply_of_the_requested_length_has_no_note():
    assert notes(make_record(requested_output=5, usage=Usage(completion=5))) == []
    assert notes(make_record(requested_output=5)) == []


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({}, "time per output token corrects this"),
        ({"server_token_count": True}, "--per-chunk-usage corrects this"),
        ({"server_token_count": True, "per_chunk_usage": True}, "excludes those of the first chunk"),
    ],
)
def test_several_tokens_per_chunk_are_noted(header, sentence):
    (note,) = notes(make_record(usage=Usage(completion=20), head_tokens=4), **header)
    assert note.startswith("Chunks hold 4.0 tokens on average")
    assert sentence in note


def test_end_of_sequence_and_hidden_reasoning_have_no_chunk():
    assert notes(make_record(usage=Usage(completion=6))) == []
    assert notes(make_record(usage=Usage(completion=105, reasoning=100))) == []
    assert notes(make_record(usage=Usage(completion=105, reasoning=100), reasonings=["a b c"])) != []


def test_replies_longer_than_requested_name_the_legacy_flag():
    record = make_record(usage=Usage(completion=5), requested_output=3)
    (note,) = notes(record)
    assert note.startswith("1 of 1 replies are more than 5 % longer than requested")
    assert "--use-legacy-max-tokens" in note
    assert notes(record, legacy_max_tokens=True) == []
    assert notes(record, endpoint="responses") == []
    assert notes(record, payload_files=["inputs.json"]) == []
    assert notes(make_record(usage=Usage(completion=5), requested_output=9)) == []
    assert notes(record, *[make_record(requested_output=5)] * 20) == []


def test_length_is_judged_by_the_server_count_if_there_is_one():
    record = make_record(usage=Usage(completion=5), requested_output=5)
    assert notes(record, values={"output_sequence_length": 30}) == []


@pytest.mark.parametrize(
    ("record", "is_burst"),
    [
        (stream(100, pieces=[5]), True),
        (stream(100, 101, 102, pieces=[2, 2, 1]), True),
        (stream(100, pieces=[1]), False),  # a single chunk
        (stream(100, 120, 140), False),
        (stream(2000, 2010, 2020), False),  # a short reply after a long prefill
        (stream(1, 2, 3, 4, 5), False),  # a fast server
        (make_record(streamed=False, stamps=[], pieces=[]), False),
    ],
)
def test_content_in_one_burst_at_the_end_is_noted(record, is_burst):
    found = notes(record, values={})
    assert len(found) == is_burst
    assert not is_burst or "time to first token and inter-token latency mean nothing" in found[0]


def test_a_minority_of_bursts_is_not_noted():
    assert notes(stream(100, pieces=[5]), make_record(), make_record()) == []


def test_chunks_without_the_requested_usage_are_noted():
    header = {"server_token_count": True, "per_chunk_usage": True}
    (note,) = notes(make_record(), make_record(head_tokens=1), **header)
    assert note.startswith("1 of 2 streamed replies have no usage in their chunks")


def test_notes_are_in_the_summary_and_on_the_screen(tmp_path):
    run = report_run(tmp_path, [stream(100, pieces=[5])])
    (note,) = run.json["reply_notes"]
    assert note in " ".join(run.read("profile_export_console.txt").split())
