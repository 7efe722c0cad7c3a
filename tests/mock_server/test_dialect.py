"""Functions that the dialects of the mock share."""

from __future__ import annotations

import pytest

from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.dialect import BadRequest, ParsedRequest, PlannedReply, plain_text, required


@pytest.mark.parametrize("value", [None, "", []])
def test_missing_field_is_a_bad_request_that_names_it(value: object) -> None:
    with pytest.raises(BadRequest, match="messages is required and must hold at least one message") as caught:
        required(value, "messages", "one message")
    assert caught.value.param == "messages"
    with pytest.raises(BadRequest, match=r"^model is required$"):
        required(value, "model")


def test_present_field_is_returned() -> None:
    assert required(["x"], "messages") == ["x"]


def test_parts_of_a_text_make_the_whole_text() -> None:
    reply = PlannedReply(ParsedRequest("m", 1, stream=True), Behaviour(tokens=9), 3, has_output_kinds=False)
    whole = plain_text(reply, 0, 9)
    assert whole == plain_text(reply, 0, 4) + plain_text(reply, 4, 5)
    assert plain_text(reply, 0, 9, choice=1) != whole
