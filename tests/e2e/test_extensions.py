"""A new sink, metric, dataset format, arrival process or companion is one file and one line in a registry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from support.programs import Outcome, Program


class Extension(NamedTuple):
    file: str
    source: str
    registry: str
    before: str
    """The entry of the registry before which the new line is inserted."""
    line: str


SINK = Extension(
    "reports/reply_lengths.py",
    """
from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink


class ReplyLengths(Sink):
    def __init__(self, context, path):
        super().__init__(context, path)
        self.lines = []

    def add(self, record, measures):
        self.lines.append(f"{record.number} {measures.values['reply_words']}\\n")

    def add_sample(self, sample):
        if sample.source == "poll_counter":  # others are those of the server's metrics
            self.lines.append(f"{sample.source} {sample.values['polls']}\\n")

    def finish(self, summary):
        with replacing(self.path) as file:
            file.write("".join(self.lines).encode())
""",
    "reports/sink_table.py",
    'SinkEntry("summary_csv",',
    'SinkEntry("reply_lengths", "{export}_lengths.txt", "penstock.reports.reply_lengths:ReplyLengths"),',
)
METRIC = Extension(
    "metrics/groups/words.py",
    """
from penstock.metrics.metric import MetricGroup, per_request, per_run

METRICS = (
    per_request("reply_words", "Reply Words", "words", "Words of the reply.", order=620),
    per_run("total_reply_words", "Total Reply Words", "words", "Sum of reply_words.", order=1140),
)


def measure(record, counts, measures):
    measures.values["reply_words"] = sum(len(text.split()) for text in record.outputs)


def summarize(figures):
    total = figures.total("reply_words")
    return {} if total is None else {"total_reply_words": total}


GROUP = MetricGroup(METRICS, measure=measure, summarize=summarize)
""",
    "metrics/catalogue.py",
    '"penstock.metrics.groups.error_adjusted:GROUP",',
    '"penstock.metrics.groups.words:GROUP",',
)
FORMAT = Extension(
    "datasets/pairs.py",
    """
from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format


def read(path, settings):
    with open(path) as file:
        rows = [line.rstrip().split("=", 1) for line in file]
    return Contents([Conversation(id=name, turns=(Turn(texts=(text,)),)) for name, text in rows])


FORMAT = Format(
    name="pairs",
    needs="one prompt per line: a name, an equals sign and the text",
    matches=lambda first: False,
    read=read,
    matches_file=lambda path: path.endswith(".pairs"),
)
""",
    "datasets/format_table.py",
    '"mooncake_trace":',
    '"pairs": "penstock.datasets.pairs",',
)
ARRIVALS = Extension(
    "schedule/pairs_of_arrivals.py",
    """
from itertools import count

import msgspec


class PairsOfArrivals(msgspec.Struct, frozen=True, tag="pairs"):
    rate: float

    def times(self, share, seed, conversations):
        for number in count(share.worker, share.workers):
            yield round(number // 2 * 2 * 1e9 / self.rate)
""",
    "settings/arrival_patterns.py",
    '"constant":',
    '"pairs": "penstock.schedule.pairs_of_arrivals:PairsOfArrivals",',
)
COMPANION = Extension(
    "runs/poll_counter.py",
    """
from time import monotonic_ns

from penstock.runs.companion import Companion


class PollCounter(Companion):
    polls = 0

    def start(self, control):
        self.control = control

    def poll(self):
        self.polls += 1
        return False

    def worker_event(self, event):
        if type(event).__name__ == "PhaseDone":
            self.control.add_sample("poll_counter", monotonic_ns(), {"polls": self.polls})


def poll_counter(settings, prepared):
    return PollCounter()
""",
    "runs/companion_table.py",
    '"penstock.runs.collect:server_metrics":',
    '"penstock.runs.poll_counter:poll_counter": lambda settings: True,',
)


def install(extension: Extension, package: Path) -> None:
    new = package / extension.file
    assert not new.exists()
    new.write_text(extension.source)
    registry = package / extension.registry
    lines = registry.read_text().splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if line.lstrip().startswith(extension.before)]
    indent = lines[place][: lines[place].index(extension.before)]
    lines.insert(place, f"{indent}{extension.line}\n")
    registry.write_text("".join(lines))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program with the extensions in a copy of the package."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "packages" / "penstock"
    shutil.copytree(Path(penstock.__file__).parent, package, ignore=shutil.ignore_patterns("gateway"))
    for extension in (SINK, METRIC, FORMAT, ARRIVALS, COMPANION):
        install(extension, package)
    program = Program(folder)
    program.env["PYTHONPATH"] = str(folder / "packages")
    return program


@pytest.fixture(scope="module")
def run(extended: Program) -> Outcome:
    prompts = extended.folder / "prompts.pairs"
    prompts.write_text("first=Say one.\nsecond=Say two.\nthird=Say three.\n")
    flags = ("--input-file", prompts, "--use-server-token-count", "--streaming", "--assert", "avg reply_words>0")
    rate = ("--request-rate", 20, "--arrival-pattern", "pairs")
    done = extended.profile("mock://?tokens=7", *flags, *rate, texts=None)
    assert done.status == 0, done
    return done


def test_new_sink_writes_its_file(run: Outcome) -> None:
    lengths = dict(line.split() for line in run.text("profile_export_lengths.txt").splitlines())
    assert int(lengths.pop("poll_counter")) > 0  # a sample of the new companion
    words = {
        str(record["metadata"]["session_num"]): record["metrics"]["reply_words"]["value"] for record in run.records
    }
    assert {number: float(length) for number, length in lengths.items()} == words
    assert len(words) == 3


def test_new_metric_is_in_every_report(run: Outcome) -> None:
    values = run.values("reply_words")
    assert min(values) > 0
    assert (run.summary["reply_words"]["count"], run.summary["reply_words"]["unit"]) == (3, "words")
    assert run.summary["total_reply_words"] == {"unit": "words", "avg": sum(values)}
    assert run.csv["Reply Words (words)"]["max"] == f"{max(values):.2f}"
    assert run.csv["Total Reply Words (words)"] == {"Value": f"{sum(values):.2f}"}
    for text in (run.out, run.text("profile_export_console.txt")):
        assert " Reply Words (words) " in text
        assert " Total Reply Words (words) " in text


def test_file_of_a_new_format_is_detected_and_sent(run: Outcome) -> None:
    sessions = json.loads(run.text("inputs.json"))["data"]
    sent = {session["session_id"]: session["payloads"][0]["messages"][0]["content"] for session in sessions}
    assert sent == {"first": "Say one.", "second": "Say two.", "third": "Say three."}


def test_requests_follow_the_new_arrival_process(run: Outcome) -> None:
    times = sorted(record["metadata"]["intended_ns"] for record in run.records)
    assert [time - times[0] for time in times] == [0, 0, 100_000_000]


def test_new_format_is_in_the_help(extended: Program) -> None:
    shown = " ".join(extended.run("profile", "--help").out.split())
    assert "pairs, mooncake_trace" in shown
