"""Why a request ends before its reply is complete: its caller has left, or the gateway shuts down."""

from __future__ import annotations

from penstock.gateway.refusal import Refusal


class CallerGoneError(Exception):
    """The caller closed its connection before it had the reply."""


def shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "The gateway is shutting down.")


class Ending:
    """Whether one request has to end."""

    def __init__(self) -> None:
        self.caller_gone = False
        """True if the caller has disconnected, or has stopped reading."""
        self.shutting_down = False
        """True once the drain time is over."""

    def raise_if_ended(self) -> None:
        if self.caller_gone:
            raise CallerGoneError
        if self.shutting_down:
            raise shutting_down()
