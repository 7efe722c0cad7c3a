from types import SimpleNamespace

import pytest

from penstock.errors import UserError
from penstock.metrics.metric import TokenCounts
from penstock.metrics.token_counting import ClientCounter, ServerCounter
from penstock.records.payloads import PayloadStore, PayloadWriter
from penstock.records.record import Failure, Usage
from penstock.settings.schema import TokenizerSettings
from support.records import MS, make_record
from support.runs import WordTokenizer

FAILED = Failure("HTTPError", "no", "server", 500)


class RecordingTokenizer(WordTokenizer):
    """Keeps the texts that it counted."""

    def __init__(self):
        self.counted = []

    def count_many(self, texts, threads=1):
        self.counted += texts
        return super().count_many(texts, threads)


@pytest.fixture
def bodies(tmp_path):
    writer = PayloadWriter(str(tmp_path))
    writer.add_body(b"counted before", input_tokens=42)
    writer.add_body(b"three|words here")
    writer.add_body(b"")
    writer.end_conversation(None)
    writer.close()
    store = PayloadStore(str(tmp_path))
    yield Bodies(store)
    store.close()


HEADER = SimpleNamespace(prompt_tokenizer=("words", "builtin"), tokenizer=None)


class Bodies:
    """The part of `BodyReader` that counting needs."""

    def __init__(self, store):
        self.payloads = store

    def entry(self, record):
        return self.payloads.entry(record.payload)

    def body(self, record):
        return self.payloads.body(record.payload)


@pytest.fixture
def words():
    return RecordingTokenizer()


def split(body):
    return body.decode().split("|") if body else []


def test_each_text_is_counted_once(bodies, words):
    counter = ClientCounter(lambda: (words, "a note"), HEADER, bodies, split)
    records = [
        make_record(payload=1),
        make_record(payload=1),
        make_record(payload=0, outputs=["a b", "c"], head_outputs="a"),
    ]
    assert counter.count(records) == [
        TokenCounts(3, 5, None, 1),
        TokenCounts(3, 5, None, 1),
        TokenCounts(42, 3, None, 1),
    ]
    assert counter.count(records) == counter.count(records)
    assert sorted(words.counted) == sorted({"three words here", "one two three four five", "one", "a b", "c", "a"})
    assert counter.tokenizer is words
    assert counter.note == "a note"


def test_texts_that_the_server_reads_one_by_one_are_counted_one_by_one(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split, separate=True)
    (counts,) = counter.count([make_record(payload=1, outputs=[])])
    assert counts.input == 3
    assert {"three", "words here"} <= set(words.counted)


def test_reasoning_is_counted_separately(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split)
    both, only = counter.count(
        [make_record(reasonings=["hm hm"]), make_record(outputs=[], reasonings=["hm hm"], head_outputs="hm")]
    )
    assert (both.output, both.reasoning, both.total) == (5, 2, 7)
    assert (only.output, only.reasoning, only.total) == (0, 2, 2)


def test_reply_without_text_has_no_output_count(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split)
    assert counter.count([make_record(outputs=[], head_outputs="")]) == [TokenCounts(42)]
    assert counter.count([make_record(outputs=[""], head_outputs="")]) == [TokenCounts(42, 0)]


def test_body_without_text_has_no_input_count(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split)
    assert counter.count([make_record(payload=2, failure=FAILED)]) == [TokenCounts()]


def test_body_of_unknown_shape_has_no_input_count(bodies, words):
    def texts(body):
        raise KeyError("messages")

    counter = ClientCounter(lambda: (words, None), HEADER, bodies, texts)
    assert counter.count([make_record(payload=1)])[0].input is None
    assert counter.count([make_record(payload=0)])[0].input == 42


def test_tokens_of_the_first_stamp_are_counted_only_with_later_stamps(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split)
    unstreamed = make_record(streamed=False, head_outputs="one")
    single = make_record(stamps=[50 * MS], pieces=[5], head_outputs="one two three four five")
    assert [c.head for c in counter.count([unstreamed, single, make_record()])] == [None, None, 1]


def test_tokenizer_is_not_loaded_without_text(bodies):
    def load():
        raise AssertionError("loaded for nothing")

    counter = ClientCounter(load, HEADER, bodies, split)
    failed, cancelled = make_record(payload=2, failure=FAILED), make_record(payload=2, cancelled=True)
    assert counter.count([failed, cancelled]) == [TokenCounts(), TokenCounts()]
    assert counter.tokenizer is None


@pytest.mark.parametrize(
    ("prompt_tokenizer", "requested", "tokens"),
    [
        (("words", "builtin"), None, 42),
        (("other", "builtin"), None, 2),
        (("words", "hub"), None, 2),
        (("other", "builtin"), "words", 2),
        (None, "words", 42),
        (None, "other", 2),
        (None, None, 2),
    ],
)
def test_stored_count_is_used_only_if_the_same_tokenizer_made_it(bodies, words, prompt_tokenizer, requested, tokens):
    """The last three are logs of an older version, which do not name the tokenizer of the prompts."""
    settings = SimpleNamespace(tokenizer=TokenizerSettings(name=requested))
    header = SimpleNamespace(prompt_tokenizer=prompt_tokenizer, settings=settings)
    counter = ClientCounter(lambda: (words, None), header, bodies, split)
    assert counter.count([make_record(failure=FAILED)]) == [TokenCounts(tokens)]


def test_stored_counts_remain_if_the_tokenizer_cannot_be_loaded(bodies):
    def load():
        raise UserError("There is no such tokenizer.")

    counter = ClientCounter(load, HEADER, bodies, split)
    assert counter.count([make_record(), make_record(payload=1)]) == [TokenCounts(42), TokenCounts()]
    assert counter.note == "No tokens were counted. There is no such tokenizer."
    assert ClientCounter(None, HEADER, bodies, split).count([make_record(payload=1)]) == [TokenCounts()]


def test_cache_of_texts_is_bounded(bodies, words):
    counter = ClientCounter(lambda: (words, None), HEADER, bodies, split, cache_bytes=1000)
    for i in range(50):
        assert counter.count([make_record(outputs=[f"text number {i}"])])[0].output == 3
        assert len(counter._cache) < 10


def test_server_counter_takes_counts_from_usage():
    count = ServerCounter().count
    assert count([make_record(usage=Usage(10, 7, 17, 3))]) == [TokenCounts(10, 4, 3, None, True)]
    assert count([make_record(usage=Usage(10, 7))]) == [TokenCounts(10, 7, None, None, True)]
    assert count([make_record(usage=Usage(10, 2, reasoning=3))])[0].output == 0
    assert count([make_record(usage=Usage(prompt=10))])[0].total is None
    assert count([make_record(usage=None)]) == [TokenCounts(by_server=True)]


def test_server_counter_takes_the_first_tokens_from_per_chunk_usage():
    record = make_record(usage=Usage(10, 7), head_tokens=3)
    assert ServerCounter().count([record])[0].head is None
    assert ServerCounter(per_chunk=True).count([record])[0].head == 3
