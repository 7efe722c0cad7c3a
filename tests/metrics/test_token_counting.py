from types import SimpleNamespace

import pytest

from penstock.errors import UserError
from penstock.metrics import token_counting
from penstock.metrics.measure import Counts
from penstock.metrics.token_counting import ClientCounter, ServerCounter
from penstock.records.payloads import PayloadStore, PayloadWriter
from penstock.records.record import Failure, Usage
from support.records import MS, made

FAILED = Failure("HTTPError", "no", "server", 500)


class Words:
    """A token is a word."""

    name = "words"
    source = "builtin"

    def __init__(self):
        self.asked = []

    def count_many(self, texts, threads=1):
        self.asked += texts
        return [len(text.split()) for text in texts]


@pytest.fixture
def log(tmp_path):
    writer = PayloadWriter(str(tmp_path))
    writer.add_body(b"counted before", input_tokens=42)
    writer.add_body(b"three|words here")
    writer.add_body(b"")
    writer.end_conversation(None)
    writer.close()
    store = PayloadStore(str(tmp_path))
    yield Log(store)
    store.close()


class Log:
    """What counting needs of a `RunLog`."""

    def __init__(self, store):
        self.payloads = store
        self.header = SimpleNamespace(prompt_tokenizer=("words", "builtin"), tokenizer=None)

    def entry(self, record):
        return self.payloads.entry(record.payload)

    def body(self, record):
        return self.payloads.body(record.payload)


@pytest.fixture
def words():
    return Words()


def split(body):
    return body.decode().split("|") if body else []


def test_each_text_is_counted_once(log, words):
    counter = ClientCounter(lambda: (words, "a note"), log, split)
    records = [made(payload=1), made(payload=1), made(payload=0, outputs=["a b", "c"], head_outputs="a")]
    assert counter.count(records) == [Counts(3, 5, None, 1), Counts(3, 5, None, 1), Counts(42, 3, None, 1)]
    assert counter.count(records) == counter.count(records)
    assert sorted(words.asked) == sorted({"three words here", "one two three four five", "one", "a b", "c", "a"})
    assert counter.tokenizer is words
    assert counter.note == "a note"


def test_reasoning_is_counted_apart(log, words):
    counter = ClientCounter(lambda: (words, None), log, split)
    both, only = counter.count([made(reasonings=["hm hm"]), made(outputs=[], reasonings=["hm hm"], head_outputs="hm")])
    assert (both.output, both.reasoning, both.total) == (5, 2, 7)
    assert (only.output, only.reasoning, only.total) == (0, 2, 2)


def test_a_reply_without_any_text_has_no_length(log, words):
    counter = ClientCounter(lambda: (words, None), log, split)
    assert counter.count([made(outputs=[], head_outputs="")]) == [Counts(42)]
    assert counter.count([made(outputs=[""], head_outputs="")]) == [Counts(42, 0)]


def test_a_body_without_text_has_no_length(log, words):
    counter = ClientCounter(lambda: (words, None), log, split)
    assert counter.count([made(payload=2, failure=FAILED)]) == [Counts()]


def test_a_body_of_another_shape_has_no_length(log, words):
    def texts(body):
        raise KeyError("messages")

    counter = ClientCounter(lambda: (words, None), log, texts)
    assert counter.count([made(payload=1)])[0].input is None
    assert counter.count([made(payload=0)])[0].input == 42


def test_the_head_counts_only_where_there_is_a_rest(log, words):
    counter = ClientCounter(lambda: (words, None), log, split)
    whole = made(streamed=False, head_outputs="one")
    single = made(stamps=[50 * MS], pieces=[5], head_outputs="one two three four five")
    assert [c.head for c in counter.count([whole, single, made()])] == [None, None, 1]


def test_the_tokenizer_is_loaded_when_a_text_asks_for_it(log):
    def load():
        raise AssertionError("loaded for nothing")

    counter = ClientCounter(load, log, split)
    failed, cancelled = made(payload=2, failure=FAILED), made(payload=2, cancelled=True)
    assert counter.count([failed, cancelled]) == [Counts(), Counts()]
    assert counter.tokenizer is None


@pytest.mark.parametrize(
    ("made_by", "asked_for", "tokens"),
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
def test_a_count_made_before_is_believed_of_the_tokenizer_that_counts_here(log, words, made_by, asked_for, tokens):
    """The last three are logs that do not say who made the prompts."""
    log.header = SimpleNamespace(prompt_tokenizer=made_by, tokenizer=asked_for)
    counter = ClientCounter(lambda: (words, None), log, split)
    assert counter.count([made(failure=FAILED)]) == [Counts(tokens)]


def test_a_tokenizer_that_cannot_be_loaded_costs_the_tokens_alone(log):
    def load():
        raise UserError("There is no such tokenizer.")

    counter = ClientCounter(load, log, split)
    assert counter.count([made(), made(payload=1)]) == [Counts(42), Counts()]
    assert counter.note == "No tokens were counted. There is no such tokenizer."
    assert ClientCounter(None, log, split).count([made(payload=1)]) == [Counts()]


def test_the_memory_of_texts_is_bounded(log, words, monkeypatch):
    monkeypatch.setattr(token_counting, "_CACHE_BYTES", 1000)
    counter = ClientCounter(lambda: (words, None), log, split)
    for i in range(50):
        assert counter.count([made(outputs=[f"text number {i}"])])[0].output == 3
        assert len(counter._cache) < 10


def test_the_servers_word():
    count = ServerCounter().count
    assert count([made(usage=Usage(10, 7, 17, 3))]) == [Counts(10, 4, 3, None, True)]
    assert count([made(usage=Usage(10, 7))]) == [Counts(10, 7, None, None, True)]
    assert count([made(usage=Usage(10, 2, reasoning=3))])[0].output == 0
    assert count([made(usage=Usage(prompt=10))])[0].total is None
    assert count([made(usage=None)]) == [Counts(by_server=True)]
