"""An endpoint, a dataset format and a metric that are added to Penstock by this package."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.format import Contents, Format
from penstock.endpoints.base import NO_HISTORY, History
from penstock.endpoints.chat import Chat
from penstock.metrics.metric import Measures, MetricGroup, PhaseFigures, TokenCounts, per_request, per_run
from penstock.records.record import Record
from penstock.settings.schema import EndpointSettings, InputSettings


class Shout(Chat):
    """Chat completions in capitals."""

    name = "shout"

    def build(
        self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY
    ) -> dict[str, Any]:
        body = super().build(turn, model, settings, history)
        for message in body["messages"]:
            message["content"] = message["content"].upper()
        return body


def _read_lines(path: str, settings: InputSettings) -> Contents:
    """Return a conversation for each line that is not empty."""
    del settings
    with open(path, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    return Contents(
        [Conversation(id=f"line-{number}", turns=(Turn(texts=(text,)),)) for number, text in enumerate(texts, 1)]
    )


LINES = Format(
    name="lines",
    needs="one prompt per line, in a file whose name ends in .prompts",
    matches=lambda first: False,  # noqa: ARG005
    read=_read_lines,
    matches_file=lambda path: path.endswith(".prompts"),
)


def _measure(record: Record, counts: TokenCounts, measures: Measures) -> None:
    del counts
    measures.values["reply_words"] = sum(len(text.split()) for text in record.outputs)


def _summarize(figures: PhaseFigures) -> dict[str, float]:
    total = figures.total("reply_words")
    return {} if total is None else {"total_reply_words": total}


WORDS = MetricGroup(
    (
        per_request("reply_words", "Reply Words", "words", "Words of the reply.", order=620, larger=True),
        per_run("total_reply_words", "Total Reply Words", "words", "Sum of reply_words.", order=1140, larger=True),
    ),
    measure=_measure,
    summarize=_summarize,
)
