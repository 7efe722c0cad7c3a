"""The request that follows a redirect."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.endpoints.chat import Chat
from penstock.secrets import Secret
from penstock.settings.endpoint_types import BUILTIN, load_endpoint
from penstock.settings.schema import EndpointSettings
from penstock.wire.connection import Origin
from penstock.wire.exchange import Exchange, FollowedRedirect
from penstock.workers.job import targets
from penstock.workers.redirects import Hop, Redirects

URL = "http://127.0.0.1:8000/base"
SETTINGS = EndpointSettings(urls=(URL,), api_key=Secret("sk-1"), headers=(("X-Team", Secret("blue")),))
OTHER = "http://127.0.0.2:9/other?y=2"


class Scene:
    def __init__(self, **settings: Any) -> None:
        fields = {name: getattr(SETTINGS, name) for name in ("urls", "api_key", "headers")}
        endpoint = EndpointSettings(**(fields | settings))
        (self.target,) = targets(endpoint, "/v1/x?k=1", load_endpoint(endpoint.type).declaration)
        pool: Any = "pool of the target"
        self.opened: list[Origin] = []
        self.redirects = Redirects(endpoint, (self.target,), [pool], self._open_pool)

    def _open_pool(self, origin: Origin) -> Any:
        self.opened.append(origin)
        return f"pool of {origin.host}"

    def exchange(self, location: str | None) -> Exchange:
        data = self.target.head + self.target.request_headers.format("r", "c", 2).encode() + b"{}"
        exchange = Exchange(data, lambda _: None)
        return redirected(exchange, location)

    def hop(self, location: str | None) -> Hop | None:
        return self.redirects.hop(self.exchange(location), 0)


def redirected(exchange: Exchange, location: str | None) -> Exchange:
    exchange.status = 307
    exchange.headers = [] if location is None else [(b"location", location.encode())]
    return exchange


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/moved?x=1", b"/moved?x=1"),
        ("moved", b"/base/v1/moved"),
        ("?z=1", b"/base/v1/x?z=1"),
        ("http://127.0.0.1:8000/abs#part", b"/abs"),
        ("//127.0.0.1:8000", b"/"),
    ],
)
def test_same_origin_keeps_method_headers_and_body(location: str, target: bytes) -> None:
    scene = Scene()
    hop = scene.hop(location)
    assert hop is not None
    assert hop.pool == "pool of the target"
    first_line, rest = hop.data.split(b"\r\n", 1)
    assert first_line == b"POST %b HTTP/1.1" % target
    assert rest == scene.exchange(None).data.split(b"\r\n", 1)[1]


@pytest.mark.parametrize(
    "location",
    [None, "", OTHER, "https://127.0.0.1:8000/", "http://127.0.0.1/", "http://u:p@127.0.0.1:8000/", "/a b", "ftp://x"],
)
def test_other_locations_are_not_followed(location: str | None) -> None:
    assert Scene().hop(location) is None


@pytest.mark.parametrize("location", ["http://no-such-host.invalid/", "ftp://127.0.0.2/", "http://127.0.0.2:x/"])
def test_unusable_locations_are_not_followed_to_another_origin(location: str) -> None:
    assert Scene(cross_origin_redirects=True).hop(location) is None


def test_other_origin_gets_no_credentials() -> None:
    scene = Scene(cross_origin_redirects=True)
    hop = scene.hop(OTHER)
    assert hop is not None
    assert hop.pool == "pool of 127.0.0.2"
    lines = hop.data.decode().split("\r\n")
    assert lines[:2] == ["POST /other?y=2 HTTP/1.1", "Host: 127.0.0.2:9"]
    assert "X-Request-ID: r" in lines
    assert "Content-Length: 2" in lines
    assert not any(line.startswith(("Authorization", "X-Team")) for line in lines)
    assert lines[-1] == "{}"
    scene.hop(OTHER)
    assert len(scene.opened) == 1


class Versioned(Chat):
    declaration = Chat.declaration._replace(
        method="PUT", credential_header="x-api-key", credential="{}", headers=(("x-version", "9"), ("x-team", "red"))
    )


def test_other_origin_gets_the_method_and_headers_that_the_endpoint_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN, "versioned", f"{__name__}:Versioned")
    hop = Scene(type="versioned", cross_origin_redirects=True).hop(OTHER)
    assert hop is not None
    lines = hop.data.decode().lower().split("\r\n")
    assert lines[0] == "put /other?y=2 http/1.1"
    assert "x-version: 9" in lines
    assert not any(line.startswith(("x-api-key", "x-team")) for line in lines)


def test_redirect_back_to_the_target_has_its_credentials_again() -> None:
    scene = Scene(cross_origin_redirects=True)
    away = scene.hop(OTHER)
    assert away is not None
    back = Exchange(away.data, lambda _: None)
    back.redirect = away.redirect
    hop = scene.redirects.hop(redirected(back, "http://127.0.0.1:8000/back"), 0)
    assert hop is not None
    assert b"Authorization: Bearer sk-1" in hop.data
    assert hop.data.count(b"Host:") == hop.data.count(b"Content-Length:") == 1
    assert (hop.redirect.hops, hop.redirect.first) == (2, away.redirect.first)


def test_relative_location_of_another_origin_stays_there() -> None:
    scene = Scene(cross_origin_redirects=True)
    away = scene.hop(OTHER)
    assert away is not None
    following = Exchange(away.data, lambda _: None)
    following.redirect = away.redirect
    hop = scene.redirects.hop(redirected(following, "/next"), 0)
    assert hop is not None
    assert (hop.pool, hop.redirect.url) == ("pool of 127.0.0.2", "http://127.0.0.2:9/next")


def test_at_most_five_redirects_are_followed() -> None:
    scene = Scene()
    exchange = scene.exchange("/again")
    for hops, followed in ((4, True), (5, False)):
        exchange.redirect = FollowedRedirect(exchange, hops, URL)
        assert (scene.redirects.hop(exchange, 0) is not None) is followed
